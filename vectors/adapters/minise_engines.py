"""minise's engines: the logits after each prompt. ENGINE=tree (the default), packed or separate."""

import os

import minise
from minise_row import load


def ends(folder, dtype, tokens, prompts):
    ids = [tokens[rows[rows >= 0]].tolist() for rows in prompts]
    prefix = os.path.commonprefix([one[:-1] for one in ids])
    branches = [one[len(prefix) :] for one in ids]
    engine = os.environ.get("ENGINE", "tree")
    found = minise.branch_logits(load(folder, dtype), prefix, branches, engine)
    return found.double().cpu().numpy()
