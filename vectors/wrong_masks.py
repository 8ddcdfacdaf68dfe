"""The known mistakes of a mask: what each is called, in words, and the mask. In numpy alone."""

import numpy as np


def stretches(parents):
    """Where the stretch of each token begins (a document, or the branch that it is on), and where
    its document does. Each (T,)."""
    parents = list(parents)
    start, root = np.arange(len(parents)), np.arange(len(parents))
    for t, p in enumerate(parents):
        if p >= 0:
            start[t] = t if parents.count(p) > 1 else start[p]
            root[t] = root[p]
    return start, root


def wrong_masks(d):
    """Name -> (in words, mask (T, T)). d: what layouts.structure says of a row."""
    mask, real, documents = d["mask"], d["real"], d["documents"]
    index = np.arange(len(mask))
    query, causal = index[:, None], index <= index[:, None]
    same = (documents[:, None] == documents) | (index == query)
    start, root = stretches(d["parents"])
    branch, own = start != root, index >= start[:, None]
    jumps = np.cumsum(np.append(0, np.diff(d["positions"]) != 1))
    next_one = (index == query + 1) & same
    neighbour = index == start[:, None] - 1
    return {
        "causal_mask": ("plain causal mask: other prompts are seen", causal),
        "branches_mixed": ("documents are kept apart, branches are not", causal & same),
        "nothing_hidden": ("nothing is hidden", causal | ~causal),
        "mask_inverted": ("the mask is inverted", ~mask),
        "bidirectional": ("later tokens of the same prompt are seen", mask | mask.T),
        "future_by_one": ("the next token is seen", mask | next_one),
        "neighbour_seen": ("the token before a document or branch is seen", mask | neighbour),
        "prefix_hidden": ("a branch does not see its prompt's beginning", mask & own),
        "middle_hidden": (
            "a branch sees only its trunk and itself",
            mask & (own | ~branch),
        ),
        "cut_at_jumps": ("cut where positions jump", causal & (jumps[:, None] == jumps)),
        "padding_seen": ("padding is seen", mask | (causal & ~real)),
    }
