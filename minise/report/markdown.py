"""Text from outside in a Markdown file, such as names, labels, questions and choices."""

from __future__ import annotations

import re

# A backslash goes before each: signs of code, emphasis and tables; what makes links and images of
# brackets; and what makes headings, quotes and lists at the beginning of a line. An underscore
# between letters or digits means nothing and stays as it is, as does a lone "-", which tables have
# for what is undefined.
_SIGNS = re.compile(
    r"[\\`*~|]|(?<![^\W_])_|_(?![^\W_])|!(?=\[)|\](?=[(\[:])|^[#>]|^-(?=[ -])|^\+(?= |$)"
)


def as_markdown(text: str) -> str:
    """The text on one line, which a reader of the rendered Markdown (GitHub's) sees as it is: a
    cell of a table, or a paragraph or a part of one. It holds no HTML, image or link.

    >>> print(as_markdown("self-ensemble (m=3) | <b>best</b>"))
    self-ensemble (m=3) \\| &lt;b>best&lt;/b>
    """
    text = _SIGNS.sub(r"\\\g<0>", " ".join(text.split()))
    text = re.sub(r"^(\d+)([.)](?: |$))", r"\1\\\2", text)  # a numbered list
    # As entities: a backslash would not stop an address from becoming a link, nor an entity.
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("://", ":&#47;/")
    text = re.sub(r"<(?! |$)", "&lt;", text)  # `a < b` is no HTML
    return re.sub(r"(?i)(www)\.", r"\1&#46;", text)
