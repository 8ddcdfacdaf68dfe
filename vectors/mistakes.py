"""The known mistakes of packed rows: what each is called, in words, and what it changes.

`mistakes` are wrong forward passes: make_vectors.wrong runs them. `losses` are wrong losses of
right logits.
"""

import numpy as np
import torch
from wrong_masks import stretches, wrong_masks


def mistakes(row, c, d, windows):
    """Name -> (in words, what differs from a right run). row: its name, and `d` what it is in all
    descriptions. c: the config; windows: of each layer."""
    mask, where = (torch.as_tensor(d[n]) for n in ("mask", "positions"))
    cached, T = int(d["cached"]), len(d["tokens"])
    index = torch.arange(T)
    query, causal = index[:, None], index <= index[:, None]
    start, root = (torch.as_tensor(x) for x in stretches(d["parents"]))
    branch, by_index = start != root, index + where.min()
    in_pass = torch.where(index < cached, index, index - cached)
    unread, short = (query >= cached) & (index < cached), (query >= cached) & (index == cached - 1)
    out = {"one_text": ("read as one text", {"mask": causal, "positions": by_index})}
    for name, (words, wrong) in wrong_masks(d).items():
        out[name] = (words, {"mask": wrong})
        if name == "mask_inverted":  # the order is that of the files
            out["mask_added"] = ("the mask is added to the scores as 0 and 1", {"add": True})
    out |= {
        "cache_unread": ("the cached tokens are not seen", {"mask": mask & ~unread}),
        "cache_short": ("the last of the cached tokens is not seen", {"mask": mask & ~short}),
        "cache_restart": ("positions restart behind the cache", {"positions": in_pass}),
        "positions_by_index": ("positions by index", {"positions": by_index}),
        "positions_run_on": ("positions run on across documents", {"positions": where + root}),
        "positions_restart": (
            "positions restart in each branch",
            {"positions": where - where[start]},
        ),
        "positions_late": ("a branch begins one position late", {"positions": where + 1 * branch}),
        "kv_order": ("key/value heads repeat as 0 1 0 1, not 0 0 1 1", {"kv_order": True}),
        "rope_pairs": ("rotary pairs are 2i, 2i + 1, not i, i + h/2", {"pairs": True}),
    }
    if c["rope_scaling"]:
        out["rope_unscaled"] = ("rope_scaling is ignored", {"scaled": False})
    if c["model_type"] == "qwen2":
        out["bias_ignored"] = ("the biases are ignored", {"without": ["bias"]})
    if c["model_type"] == "qwen3":
        out["q_norm_ignored"] = ("queries are not normed", {"without": ["q_norm"]})
        out["k_norm_ignored"] = ("keys are not normed", {"without": ["k_norm"]})
        out["norms_ignored"] = (
            "queries and keys are not normed",
            {"without": ["q_norm", "k_norm"]},
        )
        out["norm_late"] = ("queries and keys are normed after the rotation", {"late": True})
    window = c["sliding_window"]
    if any(windows):
        out["window_by_index"] = ("the window counts places, not positions", {"where": index})
        out["window_wide"] = (
            "the window is one too wide",
            {"windows": [w and w + 1 for w in windows]},
        )
        out["window_narrow"] = (
            "the window is one too narrow",
            {"windows": [w and w - 1 for w in windows]},
        )
        out["window_ignored"] = ("there is no window", {"windows": [None for w in windows]})
    if None in windows and any(windows):
        swapped = [None if w else window for w in windows]
        out["window_everywhere"] = (
            "all layers have the window",
            {"windows": [window for w in windows]},
        )
        out["window_swapped"] = ("the wrong layers have the window", {"windows": swapped})
    if row == "far":
        rounded = where.to(torch.bfloat16).long()
        out["positions_bfloat16"] = ("positions are bfloat16", {"positions": rounded})
        out["angles_bfloat16"] = ("rotary angles are bfloat16", {"angles": torch.bfloat16})
        out["angles_float16"] = ("rotary angles are float16", {"angles": torch.float16})
    if row.startswith("paper"):
        question = torch.arange(T) < cached
        borders = torch.tensor([0, *np.cumsum(d["G"])])  # tokens of the groups up to the n-th
        group = torch.searchsorted(borders, index - cached, right=True).clamp(0)
        forgotten = borders[torch.searchsorted(borders, index, right=True) - 1]
        read = index.clone()
        read[d["index"]] = torch.tensor([cached - 1, *d["index"][:-1]])
        out |= {
            "eq3_product": ("Eq. 3 as printed: its product is 0", {"mask": causal & question}),
            "eq3_order": (
                "Eq. 3 as printed: Q sees Q",
                {"mask": mask | question & question[:, None]},
            ),
            "eq4_own": ("Eq. 4: minus the own group too", {"positions": index - borders[group]}),
            "eq4_n": ("Eq. 4 with the n of its text", {"positions": index - forgotten * ~question}),
            "index_j": ("index_j as printed: the end of the group before", {"read": read}),
        }
    return out


def losses(d):
    """Name -> (in words, edges, weights of the edges or None): wrong losses of right logits."""
    edges, real = d["edges"].tolist(), np.flatnonzero(d["real"]).tolist()
    by_index = [(t, t + 1) for t in real if t + 1 in real]
    of_prompts = [[(p, t) for p, t in edges if t in prompt] for prompt in d["prompts"]]
    again = [edge for some in of_prompts for edge in some]
    means = [1 / len(some) / len(of_prompts) for some in of_prompts for _ in some]
    inside = [(p, t) for p, t in edges if p == t - 1]
    pads = [(t - 1, t) for t in range(1, len(d["real"])) if not d["real"][t]]
    return {
        "label_crosses": ("labels are shifted by index: one crosses a border", by_index, None),
        "label_unshifted": ("each token is its own label", [(t, t) for t in real], None),
        "label_missing": ("the first token of later branches has no label", inside, None),
        "label_repeated": ("a beginning counts once for each of its prompts", again, None),
        "label_padding": ("padding has labels", edges + pads, None),
        "mean_of_means": ("the mean over prompts of each one's mean", again, means),
    }
