"""minise's engines: the logits after each prompt. ENGINE=tree (if not set), packed or separate."""

import os

from minise_row import load

import minise


def ends(folder, dtype, tokens, prompts):
    ids = [tokens[rows[rows >= 0]].tolist() for rows in prompts]
    prefix = []
    for column in zip(*(prompt[:-1] for prompt in ids), strict=False):
        if len(set(column)) > 1:
            break
        prefix.append(column[0])
    branches = [prompt[len(prefix) :] for prompt in ids]
    engine = os.environ.get("ENGINE", "tree")
    found = minise.branch_logits(load(folder, dtype), prefix, branches, engine)
    return found.double().cpu().numpy()
