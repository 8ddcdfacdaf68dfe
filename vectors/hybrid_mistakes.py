"""The known mistakes of rows through recurrent layers: what each is called, in words, and by what
ways a whole row goes. hybrids.py runs them. In numpy alone."""

from dataclasses import replace

import numpy as np
from hybrids import Ways
from operator_mistakes import of_paths
from operators import NONE


def right(d):
    return Ways(d["mask"], d["positions"], d["parents"], d["parents"])


def in_parts(name, words, ways, changed):
    """Both a state and a convolution that go on from other tokens, and either alone."""
    yield f"both_{name}", f"state and taps: {words}", replace(ways, state=changed, conv=changed)
    yield f"state_{name}", f"the state alone: {words}", replace(ways, state=changed)
    yield f"conv_{name}", f"the taps alone: {words}", replace(ways, conv=changed)


def of_borders(d):
    """Mistakes that any row can have."""
    ways, index = right(d), np.arange(len(d["parents"]))
    causal, before = index <= index[:, None], index - 1
    yield "one_text", "read as one text", Ways(causal, index, before, before)
    words = "positions are right, borders are not read (three axes of positions for four)"
    yield "borders_lost", words, replace(ways, sees=causal, state=before, conv=before)
    words = "plain causal mask: other prompts are seen, states are right"
    yield "causal_mask", words, replace(ways, sees=causal)
    yield "positions_by_index", "positions by index", replace(ways, where=index)
    words = "decays are summed over the row, not over the path"
    yield "decay_over_row", words, replace(ways, over_row=True)


def of_branches(d):
    for name, (words, change) in of_paths(d).items():
        if change.parents is None or change.take is not None or name == "behind_padding":
            continue
        yield from in_parts(name, words, right(d), change.parents)


def of_rollback(d):
    """Of a row whose first `cached` tokens are run, and rolled back to the parent of the next."""
    ways, parents, cached = right(d), d["parents"], int(d["cached"])
    index = np.arange(len(parents))
    kept = parents[cached]  # the last token that is not rolled back
    behind = index >= cached

    def going_on_from(token):
        return np.where(index == cached, token, parents)

    def seen(token, sees=True):
        """The mask with this token seen behind the cache, or not."""
        mask = d["mask"].copy()
        mask[behind, token] = sees
        return mask

    for name, words, token in (
        ("row_before", "nothing is rolled back", cached - 1),
        ("rolled_back_too_far", "rolled back by one token too many", kept - 1),
        ("rolled_back_too_little", "rolled back by one token too few", kept + 1),
        ("branch_from_nothing", "what was kept is lost", NONE),
    ):
        yield from in_parts(name, words, ways, going_on_from(token))
    for name, words, step in (
        ("cache_rolled_back_too_far", "the cache is rolled back by one token too many", -1),
        ("cache_rolled_back_too_little", "the cache is rolled back by one token too few", 1),
    ):
        path, where = going_on_from(kept + step), d["positions"] + step * behind
        sees = seen(kept, sees=False) if step < 0 else seen(kept + 1)
        yield name, f"{words}: keys, positions and states", Ways(sees, where, path, path)
    unread = d["mask"] & ~(behind[:, None] & ~behind)
    yield "cache_unread", "the cached tokens are not seen", replace(ways, sees=unread)
    words = "the last of the cached tokens is not seen"
    yield "cache_short", words, replace(ways, sees=seen(kept, sees=False))
    restarted = d["positions"] - (kept + 1) * behind
    yield "cache_restart", "positions restart behind the cache", replace(ways, where=restarted)
    yield from of_repetition(d, ways, kept, cached)


def of_repetition(d, ways, kept, cached):
    """The last token that is kept runs a second time, before the next: in states, in taps, or in
    all, and then it is a key, too."""
    T = len(d["parents"])
    take = np.insert(np.arange(T), cached, kept)
    read = np.arange(T) + (np.arange(T) >= cached)
    plain = np.where(d["parents"][take] == NONE, NONE, read[d["parents"][take]])
    again = plain.copy()
    again[cached], again[cached + 1] = kept, cached
    sees = d["mask"][take][:, take]
    sees[:, cached] = False
    sees[cached, cached] = True
    once = Ways(sees, d["positions"][take], plain, plain, take=take, read=read)
    yield from in_parts("ran_twice", "the last token that is kept runs twice", once, again)
    where = once.where + (np.arange(T + 1) >= cached)
    sees = sees.copy()
    sees[cached:, cached] = True
    all_of_it = replace(once, sees=sees, where=where, state=again, conv=again)
    words = "the last token that is kept runs twice: keys, positions and states"
    yield "cache_ran_twice", words, all_of_it


def mistakes(row, d):
    """Name -> (in words, the ways of the whole row). row: its name, and `d` what it is."""
    others = of_rollback(d) if row == "cached" else of_branches(d)
    return {name: (words, ways) for name, words, ways in (*of_borders(d), *others)}
