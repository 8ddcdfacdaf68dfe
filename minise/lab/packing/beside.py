"""What collators give beside the borders of the documents, and what must agree with them: the
borders of the keys, the longest document, lengths without padding, and the documents of layers that
have no attention.
"""

from __future__ import annotations

from minise.lab.packing.formats import ANY, Finding, integers, need
from minise.lab.packing.packing import Packing

OTHER_KEYS = "the borders of the keys are not those of the queries"
TOO_SHORT = "max_seqlen is shorter than the longest document"
OTHER_LENGTHS = "the lengths without padding are not those of the documents"
OTHER_MASK = "an attention_mask beside cu_seqlens switches packing off"
OTHER_DOCUMENTS = "seq_idx has other documents"


def judge_beside(p: Packing) -> list[Finding]:
    """What does not agree."""
    findings = [
        judge_row_mask(p),
        judge_keys(p),
        judge_lengths(p, "cu_seqlens_unpadded"),
        judge_lengths(p, "cu_seqlens_unpadded_k"),
        judge_longest(p, "max_seqlen"),
        judge_longest(p, "max_seqlen_k"),
        judge_seq_idx(p),
    ]
    return [finding for finding in findings if finding is not None]


def judge_row_mask(p: Packing) -> Finding | None:
    """Who is given a mask of 0 and 1 too goes by one of the two, and the mask has no borders."""
    if "cu_seqlens" not in p.fields or not p.has_row_mask or len(p.meant.ends) < 2:
        return None
    words = (
        "only a kernel that does not read the mask beside it goes by it (flash attention in "
        "transformers, if all of it is 1); sdpa and eager see the whole row"
    )
    return Finding("cu_seqlens", f"{words}: {OTHER_MASK}", OTHER_MASK, 1, 1, "leave the mask out")


def judge_keys(p: Packing) -> Finding | None:
    """Kernels take the borders of queries and of keys. In self-attention they are the same."""
    if "cu_seqlens_k" not in p.fields:
        return None
    need("cu_seqlens" in p.fields, "cu_seqlens_k: comes without cu_seqlens; give both")
    queries = integers("cu_seqlens", p.fields["cu_seqlens"], ANY).tolist()
    keys = integers("cu_seqlens_k", p.fields["cu_seqlens_k"], ANY).tolist()
    wrong = differences(queries, keys)
    if not wrong:
        return None
    words = f"queries {some(queries)}, keys {some(keys)}: {OTHER_KEYS}"
    mend = "give the borders of the queries for both"
    return Finding("cu_seqlens_k", words, OTHER_KEYS, wrong, len(queries), mend)


def judge_lengths(p: Packing, field: str) -> Finding | None:
    """Borders without padding, beside those with it, say how long each document is."""
    if field not in p.fields:
        return None
    need("documents" in p.fields, f"{field}: says what documents are; give their lengths too")
    meant = integers("documents", p.fields["documents"], ANY).tolist()
    given = integers(field, p.fields[field], ANY).diff().tolist()
    wrong = differences(meant, given)
    if not wrong:
        return None
    words = f"it says that the documents have {some(given)} tokens, not {some(meant)}"
    mend = "begin it with 0, and add the length of each document without its padding"
    return Finding(field, f"{words}: {OTHER_LENGTHS}", OTHER_LENGTHS, wrong, len(meant), mend)


def judge_longest(p: Packing, field: str) -> Finding | None:
    """A kernel walks so many tokens of a document: those beyond get no numbers, or wrong ones."""
    if field not in p.fields:
        return None
    given = int(integers(field, [p.fields[field]], ANY).max())
    if "cu_seqlens" in p.fields:
        longest = int(integers("cu_seqlens", p.fields["cu_seqlens"], ANY).diff().max())
    else:
        longest = int(p.meant.positions[p.real].max()) + 1
    if given >= longest:
        return None
    words = f"it is {given:,}, and the longest document has {longest:,} tokens: {TOO_SHORT}"
    return Finding(field, words, TOO_SHORT, 1, 1, f"give {longest:,} or more")


def judge_seq_idx(p: Packing) -> Finding | None:
    """Layers without attention (short convolutions, recurrences) begin anew where it changes."""
    if "seq_idx" not in p.fields:
        return None
    seq_idx = p.ids("seq_idx")
    goes_on = seq_idx[1:] == seq_idx[:-1]
    should = p.meant.parents[1:] == p.index[:-1]
    wrong = (goes_on != should) & p.real[1:]
    if not wrong.any():
        return None
    row = int(wrong.nonzero()[0]) + 1
    number = int(seq_idx[row])
    how = "as the token before it" if goes_on[row - 1] else "and the token before it another"
    words = f"{p.token(row)} has the number {number}, {how}: {OTHER_DOCUMENTS}"
    mend = "number the tokens of each document alike, and those of the next one otherwise"
    return Finding("seq_idx", words, OTHER_DOCUMENTS, int(wrong.sum()), p.T - 1, mend)


def differences(numbers: list[int], others: list[int]) -> int:
    """In how many places two lists differ; where one has no number, too."""
    wrong = 0
    for one, other in zip(numbers, others, strict=False):
        wrong += one != other
    return wrong + abs(len(numbers) - len(others))


def some(numbers: list[int], most: int = 8) -> str:
    """Such as "0, 3, 5"; of many the first ones."""
    words = ", ".join(str(number) for number in numbers[:most])
    return f"{words}, ..." if len(numbers) > most else words
