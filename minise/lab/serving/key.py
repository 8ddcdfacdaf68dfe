"""A key taken out of a text, also where it stands there in other characters.

A server, or a proxy before it, may repeat what it was sent: as it is, with the escapes of JSON, of
an address or of HTML, and headers in base64. So a text is read in several ways, and what reads as a
part of the key in one of them is taken out.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

SHORTEST_PART = 8  # characters of the key that are taken out wherever they stand
ROUNDS = 8  # of escapes within escapes; an honest text has one or two

# One character, or none: a backslash before what is no escape. An escape that was escaped again
# has more backslashes, or "%25" and "&amp;" in place of "%" and "&".
ESCAPE = re.compile(
    r"\\+u\{?0*(?P<u>[0-9a-f]{2})\}?"
    r"|\\+x(?P<x>[0-9a-f]{2})"
    r"|\\+(?P<octal>[0-7]{3})"
    r"|[%=](?:25)*(?P<percent>[0-9a-f]{2})"
    r"|&(?:amp;)*(?P<html>\#x?[0-9a-f]{1,8}|[a-z]+);"
    r"|\\+",
    re.IGNORECASE,
)
BASE64 = re.compile("[A-Za-z0-9+/_-]{11,}")  # 8 bytes or more
HEX = re.compile("[0-9A-Fa-f]{16,}")


@dataclass(frozen=True)
class Reading:
    """A way to read a text. spans: of each character the places in the text that it stands for,
    the first and the one after the last."""

    characters: str
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, characters: str, spans: list[tuple[int, int]]) -> Reading:
        """Only of characters that a key may have: others, blanks and ends of lines too, may stand
        between those of the key."""
        kept = [place for place, one in enumerate(characters) if "!" <= one <= "~"]
        return cls("".join(characters[place] for place in kept), [spans[place] for place in kept])

    def span(self, first: int, last: int) -> tuple[int, int]:
        return self.spans[first][0], self.spans[last][1]


def take_out(key: str, text: str) -> str:
    """The text with "*" in place of all SHORTEST_PART characters that follow one another in the
    key, in capitals or not. A text with escapes deep within escapes is all "*"."""
    shown = list(text)
    reading = Reading.of(text, [(place, place + 1) for place in range(len(text))])
    for _ in range(ROUNDS):
        for one in (reading, *of_base64(reading), *of_hex(reading)):
            for first, after in found(key, one):
                shown[first:after] = "*" * (after - first)
        unescaped = without_escapes(reading)
        if unescaped.characters == reading.characters:
            return "".join(shown)
        reading = unescaped
    return "*" * len(text)


def found(key: str, reading: Reading) -> Iterator[tuple[int, int]]:
    """Where pieces of the key stand in the text, read in this way."""
    key = "".join(one for one in key.lower() if "!" <= one <= "~")
    size = min(SHORTEST_PART, len(key))
    pieces = {key[start : start + size] for start in range(len(key) - size + 1)} - {""}
    written = reading.characters.lower()
    for start in range(len(written) - size + 1):
        if written[start : start + size] in pieces:
            yield reading.span(start, start + size - 1)


def without_escapes(reading: Reading) -> Reading:
    """With the character that each escape stands for."""
    characters = ""
    spans: list[tuple[int, int]] = []
    at = 0
    for escape in ESCAPE.finditer(reading.characters):
        characters += reading.characters[at : escape.start()]
        spans += reading.spans[at : escape.start()]
        character = meant(escape)
        characters += character
        spans += [reading.span(escape.start(), escape.end() - 1)] * len(character)
        at = escape.end()
    return Reading.of(characters + reading.characters[at:], spans + reading.spans[at:])


def meant(escape: re.Match[str]) -> str:
    """The characters that an escape stands for."""
    if name := escape["html"]:
        return html.unescape(f"&{name};")
    if octal := escape["octal"]:
        return chr(int(octal, 8))
    digits = escape["u"] or escape["x"] or escape["percent"]
    return chr(int(digits, 16)) if digits else ""


def of_base64(reading: Reading) -> Iterator[Reading]:
    """The bytes of what may be base64. It begins at any place: other letters may stand before."""
    for run in BASE64.finditer(reading.characters):
        letters = run[0].replace("-", "+").replace("_", "/")
        for start in range(4):
            part = letters[start:]
            part = part[: len(part) - (len(part) % 4 == 1)]
            content = base64.b64decode(part + "=" * (-len(part) % 4))
            spans = []
            for byte in range(len(content)):
                first = run.start() + start + 8 * byte // 6  # a letter holds 6 bits
                last = run.start() + start + (8 * byte + 7) // 6
                spans.append(reading.span(first, last))
            yield Reading.of(content.decode("latin-1"), spans)


def of_hex(reading: Reading) -> Iterator[Reading]:
    """The bytes of what may be pairs of hexadecimal digits."""
    for run in HEX.finditer(reading.characters):
        for start in range(2):
            count = (len(run[0]) - start) // 2
            content = bytes.fromhex(run[0][start : start + 2 * count])
            spans = []
            for byte in range(count):
                first = run.start() + start + 2 * byte
                spans.append(reading.span(first, first + 1))
            yield Reading.of(content.decode("latin-1"), spans)
