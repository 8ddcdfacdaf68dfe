"""Rows of tokens that belong to several prompts, and their descriptions. In numpy alone.

A row is a list of (token, row of the token before it in its prompt, or -1).
"""

import hashlib

import numpy as np

PAD, FAR = 0, 4000  # the token of padding; where the positions of the row "far" begin


def grow(row, ids, parent=-1):
    """Append `ids` below `parent`; where its next token is there already, go on from that."""
    for token in ids:
        if parent < 0 or (token, parent) not in row:
            row.append((token, parent))
            parent = len(row) - 1
        else:
            parent = row.index((token, parent))
    return parent


def by_depth(row):
    """The same row depth by depth: parents are far away."""
    order = sorted(range(len(row)), key=lambda t: depth(row, t))
    new = {-1: -1, **{t: i for i, t in enumerate(order)}}
    return [(row[t][0], new[row[t][1]]) for t in order]


def rows(rng):
    def ids(n):  # that differ
        return (1 + rng.permutation(63)[:n]).tolist()

    def documents(*shapes):
        row = []
        for trunk, *branches in shapes:
            last = grow(row, ids(trunk))
            for first, n in zip(ids(len(branches)), branches, strict=True):
                grow(row, [first, *ids(n - 1)], last)
        return row

    out = {"documents": documents([9], [1], [12], [6]), "branches": documents([9, 5, 1, 8, 5])}
    tree, a, b = [], ids(3), ids(2)
    last = grow(tree, ids(7))
    for branch in [*a, *b, *ids(3)], [*a, *b, *ids(4)], [*a, *ids(3)], ids(5):
        grow(tree, branch, last)
    out |= {"tree": tree, "breadth_first": by_depth(tree)}
    padded = [(PAD, -1)] * 3
    for n in 11, 8:
        grow(padded, ids(n))
        padded += [(PAD, -1)] * 2
    out |= {"padded": padded, "forest": documents([7, 4, 5], [1], [4, 3, 6, 4])}
    out["far"] = documents([7, 6, 5], [8])
    # [Q, G1, G2, G3, G4], the groups of two trials; with 8 choices, and with 7
    return out | {
        "paper_even": documents([8, 5, 5, 5, 5]),
        "paper_uneven": documents([7, 6, 3, 6, 3]),
    }


def depth(row, t):
    return 0 if row[t][1] < 0 else 1 + depth(row, row[t][1])


def structure(row):
    """What each token sees, and where it stands. What cannot say what the row is, is left out."""
    T = len(row)
    tokens, parents = (np.array(x, np.int64) for x in zip(*row, strict=True))
    real = tokens != PAD
    mask, documents = np.eye(T, dtype=bool), np.full(T, -1, np.int64)
    for t, parent in enumerate(parents):
        if parent >= 0:
            mask[t, :t] = mask[parent, :t]
        if real[t]:
            documents[t] = documents[parent] if parent >= 0 else documents.max() + 1
    d = {"tokens": tokens, "parents": parents, "mask": mask, "documents": documents, "real": real}
    d["positions"] = np.array([depth(row, t) for t in range(T)])
    d["ends"] = np.setdiff1d(np.flatnonzero(real), parents)
    until = np.array([np.flatnonzero(mask[:, t]).max() + 1 for t in range(T)])
    if all(mask[t : until[t], t].all() for t in range(T)):
        d["until"] = until
        if real.all():
            d["cu_seqlens"] = np.append(np.flatnonzero(parents < 0), T)
    return d


def describe(name, row):
    """One row of a model in all its descriptions."""
    d = structure(row)
    T, parents, tokens, ends = len(row), d["parents"], d["tokens"], d["ends"]
    d["positions"] += FAR if name == "far" else 0
    jump = next(t for t in range(1, T) if parents[t] != t - 1 and d["real"][t - 1])
    d["cached"] = np.array(parents[jump] + 1 if parents[jump] >= 0 else jump)
    paths = [np.flatnonzero(d["mask"][end]) for end in ends]
    d["prompts"] = np.array(
        [np.pad(path, (0, T - len(path)), constant_values=-1) for path in paths]
    )
    d["edges"] = np.array([(p, t) for t, p in enumerate(parents) if p >= 0])
    if all(p in (-1, t - 1) for t, p in enumerate(parents)):  # no branch: one label per token
        d["labels"] = np.where(parents >= 0, tokens, -100)
        d["labels_shifted"] = np.append(d["labels"][1:], -100)
    if name.startswith("paper"):  # the symbols of its Section 4
        d |= {"M": d["mask"].astype(np.int64), "Pos": d["positions"], "index": ends}
        d["Q"] = d["cached"]
        d["G"] = np.diff(ends, prepend=d["Q"] - 1)
    return d


def tokenizer(size):
    """A tokenizer.json: the words t0, t1, ... So a model's folder is a whole checkpoint."""
    model = {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(size)}, "unk_token": "t0"}
    return {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}


def write_sums(folder, pattern):
    """SHA256SUMS in the folder, of its files of this pattern that were made."""
    with open(folder / "SHA256SUMS", "w") as sums:
        for path in sorted(folder.glob(pattern)):
            if path.name != "config.json":  # written by hand
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                print(digest, path.relative_to(folder).as_posix(), sep="  ", file=sums)
