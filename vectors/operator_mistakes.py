"""The known mistakes of operators on packed rows: what each is called, in words, and what it
changes. operators.py runs them by `run`. In numpy alone."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import operators
from operators import NONE
from wrong_masks import stretches, wrong_masks

WINDOWED = "mask_in_window"


@dataclass(frozen=True)
class Change:
    """What differs from a right run; None: nothing. inputs: other values of these. take: the rows
    that run, by their numbers, and parents, ends, begins are of these; read: which of them are the
    row's. options: of the operator. results: what becomes of a result of that name."""

    inputs: dict[str, Any] = field(default_factory=dict)
    take: Any = None
    read: Any = None
    parents: Any = None
    ends: Any = None
    begins: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)


def run(operator, given, d, change=None, by=operators):
    """Its results by name: out, final_states, and grad_NAME of each input, for the gradient
    `given["grad_out"]` of out. That of a token's input is for the row that it comes from. by: what
    has the operators' functions."""
    c = change or Change()
    T, one = len(d["parents"]), dict(given) | c.inputs
    grad_out, initial = one.pop("grad_out"), one.pop("initial_states", None)
    if operator == "attention":
        results, back = by.attention(**one, **c.options)
        return results | {f"grad_{name}": grad for name, grad in back(grad_out).items()}
    take = np.arange(T) if c.take is None else c.take
    read = np.arange(T) if c.read is None else c.read
    parents, begins, ends = (
        d.get(n) if x is None else x
        for n, x in (("parents", c.parents), ("begins", c.begins), ("ends", c.ends))
    )
    of_token = {n for n, x in one.items() if np.ndim(x) and len(x) == T and n != "weight"}
    one = {n: x[take] if n in of_token else x for n, x in one.items()}
    firsts = np.zeros((len(take), *state_shape(operator, one)))
    if begins is not None:
        starts = np.flatnonzero(begins >= 0)
        firsts[starts] = initial[begins[starts]]
    function = by.gated_delta_rule if operator == "kda" else getattr(by, operator)
    results, back = function(**one, parents=parents, ends=ends, firsts=firsts, **c.options)
    results["out"] = results["out"][read]
    wide = np.zeros((len(take), *grad_out.shape[1:]))
    wide[read] = grad_out
    found = back(wide)
    of_firsts = found.pop("firsts")
    for name, grad in found.items():
        if name in of_token:
            results[f"grad_{name}"] = np.zeros((T, *grad.shape[1:]))
            np.add.at(results[f"grad_{name}"], take, grad)
        else:
            results[f"grad_{name}"] = grad
    if initial is not None:
        results["grad_initial_states"] = np.zeros(initial.shape)
        np.add.at(results["grad_initial_states"], begins[starts], of_firsts[starts])
    return results | {name: change_it(results[name]) for name, change_it in c.results.items()}


def state_shape(operator, one):
    if operator == "short_convolution":
        return one["x"].shape[1], one["weight"].shape[1] - 1
    if operator == "mamba2":
        return (*one["x"].shape[1:], one["B"].shape[2])
    return (*one["k"].shape[1:], one["v"].shape[2])


# ---- attention ----------------------------------------------------------------------------------
def of_attention(given, d, window):
    """Name -> (in words, change)."""
    where, index = d["positions"], np.arange(len(d["positions"]))

    def sees(mask, size, by=where):
        return mask if size is None else mask & (by[:, None] - by < size)

    out = {}
    for name, (words, mask) in wrong_masks(d).items():
        out[name] = (words, Change({"sees": sees(mask, window)}))
    add = ("the mask is added to the scores as 0 and 1", Change(options={"add": True}))
    out["mask_added"] = add
    repeated = "key/value heads repeat as 0 1 0 1, not 0 0 1 1"
    out["kv_order"] = (repeated, Change(options={"kv_order": True}))
    out["scale_ignored"] = ("scores are not scaled", Change({"scale": 1.0}))
    out["scale_twice"] = ("scores are scaled twice", Change({"scale": given["scale"] ** 2}))
    if window:
        for name, words, of_window in (
            ("window_by_index", "the window counts places, not positions", (window, index)),
            ("window_wide", "the window is one too wide", (window + 1,)),
            ("window_narrow", "the window is one too narrow", (window - 1,)),
            ("window_ignored", "there is no window", (None,)),
        ):
            out[name] = (words, Change({"sees": sees(d["mask"], *of_window)}))
    return out


# ---- layers with a state ------------------------------------------------------------------------
def of_paths(d):
    """Name -> (in words, change): what goes wrong by the path alone, in every such layer."""
    parents, real, T = d["parents"], d["real"], len(d["parents"])
    index, (start, root) = np.arange(T), stretches(d["parents"])
    branches = np.flatnonzero((start == index) & (root != index))  # where one begins
    first = {}  # of the branches behind a token
    for t in branches:
        first.setdefault(parents[t], t)
    before, own, early, late = (parents.copy() for _ in range(4))
    before[:] = index - 1
    own[branches] = NONE
    early[branches] = parents[parents[branches]]
    for t in branches:
        late[t] = parents[t] if t == first[parents[t]] else first[parents[t]]
    inside = np.where(parents == NONE, NONE, before)
    others = [t for t in branches if t != first[parents[t]]]
    out = {
        "row_before": ("all goes on from the row before", Change(parents=before)),
        "branch_from_row": (
            "documents begin anew, branches go on from the row before",
            Change(parents=inside),
        ),
        "branch_from_nothing": ("a branch begins with nothing", Change(parents=own)),
        "rolled_back_too_far": (
            "a branch begins one token before its trunk's end",
            Change(parents=early),
        ),
        "rolled_back_too_little": (
            "a branch begins behind the first token of the one before",
            Change(parents=late),
        ),
        "branch_detached": (
            "no gradient flows from a branch into its trunk",
            Change(options={"cut": branches}),
        ),
        "one_branch_attached": (
            "of the branches only the first passes a gradient into the trunk",
            Change(options={"cut": others}),
        ),
    }
    if len(first) == 1:  # one trunk
        (p,) = first
        take = np.insert(index, p + 1, p)
        read = index + (index > p)
        again = np.insert(np.where(parents == NONE, NONE, read[parents]), p + 1, p)
        again[read[branches]] = p + 1
        words = "the trunk's last token runs twice"
        out["ran_twice"] = (
            words,
            Change(take=take, read=read, parents=again, ends=read[d["ends"]]),
        )
    if not real.all():
        behind, ahead = parents.copy(), parents.copy()
        row = index // d["width"]
        go_on = (index > 0) & (row == np.roll(row, 1))
        behind[go_on & ~real] = index[go_on & ~real] - 1
        ends = np.flatnonzero(np.diff(row, append=-1))
        ahead[go_on] = index[go_on] - 1
        out["padding_enters"] = ("padding enters the state", Change(parents=ahead))
        words = "the state is taken behind the padding"
        out["behind_padding"] = (words, Change(parents=behind, ends=ends))
    if "begins" in d:
        none = np.full(T, -1)
        swapped = np.where(d["begins"] >= 0, np.roll(np.arange(3), 1)[d["begins"]], -1)
        out["initial_ignored"] = ("the initial states are ignored", Change(begins=none))
        out["initial_swapped"] = (
            "a prompt begins with the initial state of another",
            Change(begins=swapped),
        )
    return out


def of_state(operator, given, d):
    """Name -> (in words, change), in words of its own where a layer has a decay."""
    out = {f"state_{name}": known for name, known in of_paths(d).items()}
    name = "dt" if operator == "mamba2" else "g"
    g = given["dt"] if operator == "mamba2" else given["g"]
    sums = np.cumsum(g, 0)
    over_row = g.copy()
    for t, parent in enumerate(d["parents"]):
        if parent != NONE:
            over_row[t] = sums[t] - sums[parent]
    shifted = np.roll(g, 1, 0)
    words = "decays are summed over the row, not over the path"
    if operator == "mamba2":  # dt is what is written, too
        ratio = (g / over_row)[..., None]
        inputs = {"dt": over_row, "x": given["x"] * ratio}
        out["decay_over_row"] = (words, Change(inputs, results={"grad_x": lambda x: x * ratio}))
        dt = g[..., None]
        inputs = {"dt": np.ones_like(g), "A": given["A"] * 0, "x": given["x"] * dt}
        fades = Change(inputs, results={"grad_x": lambda x: x * dt})
        out["decay_ignored"] = ("the state does not fade", fades)
        unwritten = Change({"x": given["x"] / dt}, results={"grad_x": lambda x: x / dt})
        out["dt_not_written"] = ("dt fades, and is not written", unwritten)
    else:
        out["decay_over_row"] = (words, Change({"g": over_row}))
        out["decay_ignored"] = ("the state does not fade", Change({"g": g * 0}))
        out["beta_before"] = (
            "beta is that of the row before",
            Change({"beta": np.roll(given["beta"], 1, 0)}),
        )
        words = "what the state holds is not corrected"
        out["uncorrected"] = (words, Change(options={"corrects": False}))
        words = "the state is corrected before it fades, not after"
        out["corrects_first"] = (words, Change(options={"swapped": "corrects"}))
        out["scale_ignored"] = ("queries are not scaled", Change({"scale": 1.0}))
        out["scale_twice"] = ("queries are scaled twice", Change({"scale": given["scale"] ** 2}))
    if operator == "kda":
        mean = np.broadcast_to(g.mean(-1, keepdims=True), g.shape)
        out["decay_of_head"] = (
            "one decay for all channels of a head: their mean",
            Change({"g": mean}),
        )
    words = "the decay is that of the row before"
    if operator == "mamba2":
        words = "dt is that of the row before"
    out["decay_before"] = (words, Change({name: shifted}))
    out["fades_late"] = (
        "the state fades after a token wrote, not before",
        Change(options={"swapped": "fades"}),
    )
    words = "a token reads before it writes, not after"
    out["reads_first"] = (words, Change(options={"swapped": "reads"}))
    words = "the final states are transposed"
    out["final_transposed"] = (words, Change(results={"final_states": lambda x: x.swapaxes(2, 3)}))
    if "begins" in d:
        turned = given["initial_states"].swapaxes(2, 3)
        out["initial_transposed"] = (
            "the initial states are transposed",
            Change({"initial_states": turned}),
        )
    return out


def of_convolution(given, d):
    """Name -> (in words, change)."""
    words = "the taps are reversed: the first is the token's own"
    return {f"conv_{name}": known for name, known in of_paths(d).items()} | {
        "taps_reversed": (words, Change({"weight": given["weight"][:, ::-1]})),
        "bias_ignored": ("the bias is ignored", Change({"bias": given["bias"] * 0})),
        "final_reversed": (
            "the final states hold the newest input first",
            Change(results={"final_states": lambda x: x[..., ::-1]}),
        ),
    }


def mistakes(operator, given, d, window):
    """Name -> (in words, change), of all operators."""
    if operator == "attention":
        return of_attention(given, d, window)
    if operator == "short_convolution":
        return of_convolution(given, d)
    return of_state(operator, given, d)
