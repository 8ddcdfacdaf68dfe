"""Write the vectors of operators: python make_operators.py FOLDER. Needs numpy and safetensors.

One inputs.safetensors for each operator, and a file for each layout of it: the same numbers, told
to be other prompts. docs/vectors.md tells what a file holds.
"""

import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from layouts import PAD, by_depth, grow, structure, write_sums
from operator_mistakes import mistakes, run
from safetensors.numpy import save_file

FORMAT, SEED = "1.0", 2  # nobody looked for a good seed
T, WIDTH, TAPS = 72, 128, 4
# How many numbers of the last axes of a result a file keeps, spread over them; of a wrong one, 1.
KEPT = {"out": (8,), "final_states": (6, 4), "grad_initial_states": (6, 4)}
OF_GRADIENT = (4,)
PROBE = {"attention": "v", "gated_delta_rule": "v", "kda": "v", "mamba2": "x"}
PROBE["short_convolution"] = "x"  # whose gradient is kept of a wrong run


# ---- inputs: numbers of eight significant bits, exact in bfloat16 and in float16 ----------------
def exact(x):
    mantissa, exponent = np.frexp(x)
    x = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return np.where(np.abs(x) < 2.0**-12, 0, x).astype(np.float16)


def inputs_of(operator, rng):
    """By name, (T, WIDTH) where a layout says how many heads that is."""

    def normal(*shape, scale=1.0):
        return scale * rng.standard_normal(shape)

    def decays(low, high, *shape):  # log decays, spread over the powers
        return -np.exp(rng.uniform(np.log(low), np.log(high), shape))

    x = {"grad_out": normal(T, WIDTH)}
    if operator == "attention":
        x = {"grad_out": normal(T, 2 * WIDTH), "q": normal(T, 2 * WIDTH, scale=1.2)}
        x |= {"k": normal(T, WIDTH, scale=1.2), "v": normal(T, WIDTH)}
    elif operator == "short_convolution":
        x |= {"x": normal(T, WIDTH), "weight": normal(WIDTH, TAPS, scale=0.5)}
        x |= {"bias": normal(WIDTH, scale=0.3), "initial_states": normal(3, WIDTH, TAPS - 1)}
    elif operator == "mamba2":
        x |= {"x": normal(T, WIDTH), "dt": -decays(0.03, 0.3, T, 2), "A": np.array([-0.5, -4.0])}
        x |= {"B": normal(T, WIDTH, scale=0.25), "C": normal(T, WIDTH, scale=0.25)}
        x["initial_states"] = normal(3, 1, 64, 64, scale=0.3)
    else:
        x |= {"q": normal(T, WIDTH, scale=0.1), "k": normal(T, WIDTH, scale=0.1)}
        x |= {"v": normal(T, WIDTH), "beta": rng.uniform(0.3, 0.95, (T, 2))}
        slow, fast = decays(0.004, 0.2, T), decays(0.2, 0.7, T)
        x["g"] = decays(0.004, 0.7, T, WIDTH) if operator == "kda" else np.stack([slow, fast], 1)
        x["initial_states"] = normal(3, 1, 64, 64, scale=0.3)
    return {name: exact(one) for name, one in x.items()}


# ---- layouts ------------------------------------------------------------------------------------
NUMBERS = itertools.count(1)  # all tokens differ


def ids(n):
    return [next(NUMBERS) for _ in range(n)]


def of_lengths(*trees):
    """A trunk and its branches, for each; a trunk alone is a document."""
    row = []
    for trunk, *branches in trees:
        last = grow(row, ids(trunk))
        for length in branches:
            grow(row, ids(length), last)
    return row


def deep_tree():
    """Of depth 3, depth by depth."""
    row, a, b = [], ids(5), ids(4)
    last = grow(row, ids(38))
    for branch in [*a, *b, *ids(3)], [*a, *b, *ids(1)], [*a, *ids(6)], ids(15):
        grow(row, branch, last)
    return by_depth(row)


def padded(left):
    """A batch of three sequences of 24, one row behind the other."""
    row = []
    for length in 24, 1, 17:
        padding = [(PAD, -1)] * (24 - length)
        if left:
            row += padding
        grow(row, ids(length))
        if not left:
            row += padding
    return row


@dataclass(frozen=True)
class Layout:
    """row: its tokens. size: of a head. window: of attention. padded: tokens are a batch of
    sequences of `width`, with padding on one side. continued: documents begin with a state."""

    name: str
    row: list[tuple[int, int]]
    size: int = 64
    window: int | None = None
    width: int | None = None
    continued: bool = False


BRANCHES = of_lengths((41, 9, 1, 14, 7))
DOCUMENTS = of_lengths((66,), (1,), (5,))
ATTENTION = [
    Layout("documents", DOCUMENTS, size=128, window=17),
    Layout("branches", BRANCHES),
    Layout("tree", deep_tree(), window=9),
    Layout("padded_left", padded(left=True), size=128, width=24),
]
STATE = [
    Layout("documents", DOCUMENTS, size=128),
    Layout("branches", BRANCHES),
    Layout("tree", deep_tree()),
    Layout("padded_right", padded(left=False), size=128, width=24),
    Layout("padded_left", padded(left=True), width=24),
    Layout("continued", of_lengths((43,), (1,), (28,)), continued=True),
]
LAYOUTS = {
    "attention": ATTENTION,
    "gated_delta_rule": STATE,
    "kda": STATE,
    "mamba2": STATE,
    "short_convolution": STATE,
}


def described(layout):
    """What a file says of its row. lengths: of a batch whose padding is behind."""
    d = structure(layout.row)
    del d["tokens"]
    if layout.width:
        d["width"] = np.array(layout.width)
        if layout.name == "padded_right":
            d["lengths"] = d["real"].reshape(-1, layout.width).sum(1)
    if layout.continued:
        d["begins"] = np.where(d["parents"] < 0, d["documents"], -1)
    return d


def shapes_of(operator, layout):
    """How a layout reads the inputs: the first numbers of each token, as so many heads."""
    size, heads = layout.size, 1 if layout.continued else WIDTH // layout.size
    wide = {"grad_out", "q", "k", "v", "x", "B", "C"} | ({"g"} if operator == "kda" else set())
    shapes = dict.fromkeys(wide, (T, heads, size))
    if operator == "attention":
        shapes |= dict.fromkeys(("q", "grad_out"), (T, 2 * heads, size))
    if operator == "short_convolution":
        return {"initial_states": (3, WIDTH, TAPS - 1)} if layout.continued else {}
    shapes |= {"g": shapes.get("g", (T, heads)), "beta": (T, heads), "dt": (T, heads)}
    shapes |= {"A": (heads,), "initial_states": (3, heads, size, size)}
    return shapes


def as_read(x, shape):
    if len(shape) == 3 and x.ndim == 2:
        return x.reshape(len(x), -1, shape[2])[:, : shape[1]]
    return x[tuple(slice(0, n) for n in shape)]


# ---- files --------------------------------------------------------------------------------------
def spread(size, count):
    """So many numbers of an axis, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, size - 1, count)})


def kept_of(results):
    """For each result, which numbers of its last axes a file keeps."""
    kept = {}
    for name, x in results.items():
        counts = KEPT.get(name, OF_GRADIENT)
        counts = counts if x.ndim > len(counts) else ()  # (T, heads) and less are kept whole
        kept[name] = [
            spread(n, count) for n, count in zip(x.shape[::-1], counts[::-1], strict=False)
        ]
        kept[name].reverse()
    return kept


def cut(x, lists):
    """The numbers of x that are kept: x[..., lists[0]] or x[..., lists[0], :][..., lists[1]]."""
    for back, numbers in enumerate(reversed(lists), 1):
        x = np.take(x, numbers, axis=-back)
    return x


def vectors(operator, layout, inputs):
    """The tensors of a layout's file, and its facts."""
    d, shapes = described(layout), shapes_of(operator, layout)
    given = {n: as_read(x.astype(float), shapes.get(n, x.shape)) for n, x in inputs.items()}
    if not layout.continued:
        given.pop("initial_states", None)
    given["grad_out"] = given["grad_out"] * d["real"].reshape(
        -1, *[1] * (given["grad_out"].ndim - 1)
    )
    scale = None
    if "q" in given:
        scale = given["scale"] = layout.size**-0.5
    if operator == "attention":
        where, mask = d["positions"], d["mask"]
        back = where[:, None] - where
        given["sees"] = mask if layout.window is None else mask & (back < layout.window)
        d["mask_in_window"] = given["sees"]
    right = run(operator, given, d)
    kept, probe = kept_of(right), "grad_" + PROBE[operator]
    known, words, invisible = {"": right}, {}, []
    compared = [name for name in ("out", "final_states", probe) if name in right]
    for name, (text, change) in mistakes(operator, given, d, layout.window).items():
        found = run(operator, given, d, change)
        same = [n for n, other in known.items() if alike(other, found, compared, d["real"])]
        if not same:
            known[name], words[name] = found, text
        elif same[0]:
            words[same[0]] += f"; or: {text}"
        else:
            invisible.append(name)
    del known[""]
    if operator != "attention":
        d = {n: x for n, x in d.items() if n not in ("mask", "until")}
    tensors = {f"row.{n}": x for n, x in d.items()}
    tensors |= {f"right.{n}": cut(x, kept[n]).astype(np.float32) for n, x in right.items()}
    for name in compared:
        part = [numbers[:1] for numbers in kept[name]]
        if name == "final_states":  # the first number stays where a state is transposed
            part[0] = kept[name][0][:2]
        # Without a gradient of its own a mistake keeps the right one: it is told by its results.
        wrong = [cut(found.get(name, right[name]), part) for found in known.values()]
        tensors[f"wrong.{name}"] = np.stack(wrong).astype(np.float32)
    facts = {"format": FORMAT, "operator": operator, "layout": layout.name, "scale": scale}
    facts |= {"window": layout.window, "shapes": {n: given[n].shape for n in inputs if n in given}}
    facts |= {"kept": kept, "probe": probe, "words": words, "invisible": invisible}
    return {n: np.array(x, order="C") for n, x in tensors.items()}, facts


def alike(one, other, compared, real):
    """Whether two results are the same within rounding."""
    far = 0
    for name in compared:
        a, b = (x.get(name) for x in (one, other))
        if a is None or b is None:
            continue
        rows = real if len(real) == len(a) else slice(None)
        far = max(far, np.abs(a[rows] - b[rows]).max())
    return far < 1e-9


def main(out):
    for number, (operator, layouts) in enumerate(LAYOUTS.items()):
        folder = Path(out) / operator
        folder.mkdir(parents=True, exist_ok=True)
        inputs = inputs_of(operator, np.random.default_rng([SEED, number]))
        save_file(inputs, folder / "inputs.safetensors")
        for layout in layouts:
            tensors, facts = vectors(operator, layout, inputs)
            save_file(tensors, folder / f"{layout.name}.safetensors", {"facts": json.dumps(facts)})
    write_sums(Path(out), "*/*.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
