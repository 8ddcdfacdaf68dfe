"""How far a result is from the right one, and which known mistake explains it."""

from dataclasses import dataclass

import numpy as np

TOLERANCE = {"float64": 5e-3, "float32": 5e-3, "float16": 0.1, "bfloat16": 0.3}
TIMES = {"logits": 1, "ends": 1, "loss": 0.05, "gradients": 2}  # of that tolerance
OF_OPERATORS = {"float64": 5e-3, "float32": 5e-3, "float16": 0.02, "bfloat16": 0.15}
PROBE = "model.layers.0.input_layernorm.weight"  # whose gradient the mistakes of a model have


class Unusable(ValueError):
    """What an adapter answers cannot be compared."""


@dataclass
class Compared:
    """rows: what is compared, by number or name. far: how far off each is, largest difference by
    the root mean square of the right numbers. near: (mistakes, rows) how far from each mistake, and
    changes: how far the mistake is from right there, over the numbers that are kept of it."""

    rows: list
    far: np.ndarray
    near: np.ndarray
    changes: np.ndarray


def off(got, right, like):
    """The largest difference in each row of the last axes, by the root mean square of `like`.
    got, right: (..., rows, numbers)."""
    far = np.abs(np.asarray(got, np.float64) - right).max(-1) / np.sqrt(np.mean(np.square(like)))
    return np.where(np.isnan(far), np.inf, far)


def compare(kind, got, file):
    """A result of a model's row: logits, ends, loss, gradients."""
    if kind == "gradients":
        right = {n[16:]: x.flatten() for n, x in file.items() if n.startswith("right.gradients.")}
        far = np.array([off(np.ravel(got[n]), x, x) for n, x in right.items()])
        wrong, probe = file["wrong.gradients"], right[PROBE]
        near = off(got[PROBE], wrong, probe)[:, None]
        return Compared(list(right), far, near, off(wrong, probe, probe)[:, None])
    if kind == "loss":
        right, wrong, got = file["right.loss"][None], file["wrong.loss"][:, None], np.ravel(got)
        near, changes = (off(one, wrong, right)[:, None] for one in (got, right))
        return Compared(["loss"], off(got, right, right)[None], near, changes)
    rows = file["row.ends"] if kind == "ends" else np.flatnonzero(file["row.real"])
    got = np.asarray(got) if kind == "ends" else np.asarray(got)[rows]
    right, wrong = file["right.logits"][rows], file["wrong.logits"][:, rows]
    near, changes = (off(one[:, : wrong.shape[2]], wrong, right) for one in (got, right))
    return Compared(list(rows), off(got, right, right), near, changes)


def compare_operator(name, got, file, facts):
    """A result of an operator: out, final_states, or grad_NAME of one of its inputs."""
    got, right = np.asarray(got, np.float64), file[f"right.{name}"]
    given = got.shape
    try:
        for back, numbers in enumerate(reversed(facts["kept"][name]), 1):
            got = np.take(got, numbers, axis=-back)
    except IndexError:  # too few axes, too
        why = f"its shape is {given}, of which {right.shape} cannot be taken"
        raise Unusable(f"{name}: {why}") from None
    if got.shape != right.shape:
        raise Unusable(f"{name}: {got.shape} of what is kept, and it must be {right.shape}")
    real, wrong = file["row.real"], file.get(f"wrong.{name}")
    of_tokens = len(got) == len(real) and name not in ("grad_weight", "grad_bias")
    rows = np.flatnonzero(real) if of_tokens else np.arange(len(got))
    got, right = got[rows], right[rows]
    flat_got, flat_right = (one.reshape(len(rows), -1) for one in (got, right))
    far = off(flat_got, flat_right, right)
    if wrong is None:
        unknown = np.full((len(facts["words"]), len(rows)), np.inf)
        return Compared(list(rows), far, unknown, unknown)
    of_wrong = (slice(None), *(slice(0, n) for n in wrong.shape[2:]))
    wrong = wrong[:, rows].reshape(len(wrong), len(rows), -1)
    near, changes = (
        off(one[of_wrong].reshape(len(rows), -1), wrong, right) for one in (got, right)
    )
    return Compared(list(rows), far, near, changes)


def ruled_out(compared, limit, words):
    """The names of mistakes that would be seen in this result, which is right."""
    if (compared.far > limit).any() or np.isinf(compared.near).all():
        return set()
    seen = (compared.near > 4 * limit).any(1)
    return {name for name, is_seen in zip(words, seen, strict=True) if is_seen}


def explain(compared, limit, words, impossible=()):
    """What is wrong, in words, and the names of the known mistakes in it; nothing: all is right.

    words: name -> words, of the mistakes in the order of `near`. impossible: names of those that
    another result rules out. Row by row it is the mistake that is as near as a right result would
    be, and nearer than right itself. First the one that explains most wrong rows, less the right
    rows that it would make wrong; of two, the nearer.
    """
    rows, far, near = compared.rows, compared.far, compared.near
    left, said, names = far > limit, [], []
    broken = np.isinf(far)
    if broken.any():
        said.append(f"not finite ({broken.sum()} of {len(rows)}, first {rows[np.argmax(broken)]})")
        left = left & ~broken
    unknown = "wrong" if np.isinf(near).all() else "no known mistake"  # or none is kept of this
    possible = np.array([name not in impossible for name in words], bool)
    near = np.where(possible[:, None], near, np.inf)
    is_it = (near <= limit) & (near < far / 4) & (near < compared.changes / 2)
    explained = np.vstack([is_it, left])
    against = ((near > 4 * limit) & ~left).sum(1) + np.minimum(near, 1).mean(1)
    while left.any():
        here = explained & left
        score = here.sum(1) - np.append(against, len(far) ** 2)
        best = np.argmax(np.where(here.any(1), score, -np.inf))
        name, first = [*words.values(), unknown][best], rows[np.argmax(here[best])]
        said.append(f"{name} ({here[best].sum()} of {len(rows)}, first {first})")
        names.append([*words, ""][best])
        left = left & ~here[best]
    return "; ".join(said), names
