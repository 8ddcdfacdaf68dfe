"""A packed sequence as the page shows it, token by token.

A character outside English often takes several tokens, each of some of its bytes. Alone they have
no text; the last of them gets the whole character.
"""

from __future__ import annotations

from minise.engines import LanguageModel
from minise.explaining.data import Sequence_
from minise.layout import Tree

UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are not a whole character


def sequence_part(lm: LanguageModel, tree: Tree) -> Sequence_:
    """The tokens of a layout: their texts, positions, parents and groups."""
    owners: list[set[int]] = [set() for _ in tree.tokens]
    for group, path in enumerate(tree.paths()):
        for row in path:
            owners[row].add(group)
    texts, inside = _texts(lm, tree)
    return {
        "texts": texts,
        "inside": inside,
        "positions": tree.positions.tolist(),
        "parents": tree.parents.tolist(),
        "groups": [min(groups) if len(groups) == 1 else -1 for groups in owners],
        "ends": tree.ends.tolist(),
    }


def _texts(lm: LanguageModel, tree: Tree) -> tuple[list[str], list[int]]:
    """Each token's text after the tokens before it, and the rows that end inside a character. Some
    tokenizers would decode a token alone without its space."""
    tokens, parents, decode = tree.tokens.tolist(), tree.parents.tolist(), lm.tokenizer.decode
    texts: list[str] = []
    inside: set[int] = set()
    opened: list[int] = []  # for each row, the first row of the character that it belongs to
    ends = set(tree.ends.tolist())
    for row, parent in enumerate(parents):
        first = opened[parent] if parent in inside else row
        path, at = [row], row
        while at != first:
            at = parents[at]
            path.insert(0, at)
        before = [tokens[parents[first]]] if parents[first] >= 0 else []
        text = decode([*before, *(tokens[one] for one in path)])[len(decode(before)) :]
        opened.append(first)
        if text.endswith(UNKNOWN) and row not in ends:
            inside.add(row)
            text = ""
        texts.append(text)
    return texts, sorted(inside)
