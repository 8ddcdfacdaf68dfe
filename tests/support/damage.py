"""Damage real files in realistic ways: bytes, JSON, safetensors, and what their path leads to.

Every function draws from the generator in its arguments, so a seed determines the damage.
"""

from __future__ import annotations

import copy
import json
import math
import random
import struct
from typing import Any

# Unexpected texts.
TEXTS = (
    *("", " ", "\0", "\x1b[31mred", "\x07", "\r", "a\nb", "\x7f", "\x9b1m", "\u202e", "\ud800"),
    *("\udcff", "é", "名", "🦜", "\ufeff", "A", "1", "NaN", "$x$", "x$_{$", "%s{}", "../../x", "/"),
    *("x" * 300, "word " * 20_000),
)
# Values as JSON is written, some of which no program would write.
VALUES = (
    *("null", "true", "false", "0", "1", "2", "3", "-1", "0.5", "-0.0", "1e-320", "1e29", "1e308"),
    *("1e999", "-1e999", "NaN", "Infinity", "2147483647", "2147483648", "18446744073709551616"),
    *("1" + "0" * 400, "1" * 5_000, "[]", "{}", "[[]]", "[0]", '["a", "b"]', '{"a": {"b": [1]}}'),
    *(
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 3_000 + "1" + "}" * 3_000,
        "[0" + ",0" * 9_000 + "]",
    ),
    *map(json.dumps, TEXTS),
)
NUMBERS = (float("nan"), float("inf"), -float("inf"), 3e38, 1e30, 3e4, 1e-40, 0.0)


def damage_bytes(data: bytes, draw: random.Random) -> bytes:
    """One to four changes: bits flipped, a cut, bytes put in, taken out, replaced, repeated."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 1, 4, 40, 400)))
        some = draw.choice((draw.randbytes(8), b"\xff", b"\0", b'"', b"{", draw_text(draw)))
        piece = data[at:end]
        middle: bytes = draw.choice(
            (bytes(b ^ (1 << draw.randrange(8)) for b in piece), some + piece, b"", some, piece * 3)
        )
        data = data[:at] + draw.choice((middle + data[end:], middle + data[end:], b""))
    return data


def draw_text(draw: random.Random) -> bytes:
    return draw.choice(TEXTS).encode("utf-8", "surrogatepass")


def damage_json(data: bytes, draw: random.Random) -> bytes:
    """A JSON value with one to four places changed; now and then its bytes, too."""
    value = [json.loads(data)]  # in a list, so that the whole value is a place too
    snippets: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        holder, key = _place(value, draw)
        change = draw.randrange(12)
        if change < 5:
            mark = f"@{len(snippets)}@"
            snippets[json.dumps(mark)] = draw.choice(VALUES)
            holder[key] = mark
        elif change == 5 and holder is not value:
            del holder[key]
        elif change == 6:
            source, index = _place(value, draw)
            holder[key] = copy.deepcopy(source[index])
        elif change == 7 and isinstance(holder, dict):
            holder[draw.choice((draw.choice(TEXTS), key + "s", key.upper()))] = holder.pop(key)
        elif change == 8 and isinstance(holder, dict):
            mark = f"@{len(snippets)}@"  # becomes the same key once more
            snippets[f"{json.dumps(mark)}: 0"] = f"{json.dumps(key)}: {draw.choice(VALUES)}"
            holder[mark] = 0
        else:
            holder[key] = _near(holder[key], draw)
    text = json.dumps(value[0])
    for mark, snippet in snippets.items():
        text = text.replace(mark, snippet)
    data = text.encode("utf-8", "surrogatepass")
    return damage_bytes(data, draw) if draw.random() < 0.1 else data


def _place(value: list[Any], draw: random.Random) -> tuple[Any, Any]:
    """A container and one of its keys or indices, near the top more often than deep down."""
    holder: Any = value
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.8:
        holder = holder[key]
        key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    return holder, key


def _near(value: Any, draw: random.Random) -> Any:
    """A value of the same type beside this one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return draw.choice((-value, value + 1, value - 1, value * 2, value * 1e6, value / 3))
    if isinstance(value, str):
        at = draw.randrange(len(value) + 1)
        return draw.choice(
            (value[:at], value + value, value[:at] + draw.choice(TEXTS) + value[at:])
        )
    if isinstance(value, list):
        return draw.choice((value[1:], value[::-1], value * 40, value + value[:1]))
    return {key: value[key] for key in list(value)[draw.randrange(len(value) + 1) :]}


def damage_safetensors(data: bytes, draw: random.Random) -> bytes:
    """The header's JSON, its length, the numbers (float32), or any bytes."""
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    change = draw.randrange(5)
    if change == 0:
        header = damage_json(header, draw)
    elif change == 1:
        size = draw.choice((0, 1, size - 1, size + 1, 10**8, 2**63, 2**64 - 1))
        return size.to_bytes(8, "little") + header + body
    elif change == 2:
        at = 4 * draw.randrange(len(body) // 4)
        body = body[:at] + struct.pack("<f", draw.choice(NUMBERS)) + body[at + 4 :]
    elif change == 3:
        scale = draw.choice((3e4, 1e10, 1e19, 1e-30))
        count = len(body) // 4
        numbers = [x * scale for x in struct.unpack(f"<{count}f", body[: 4 * count])]
        numbers = [x if abs(x) < 3e38 else math.inf for x in numbers]
        body = struct.pack(f"<{count}f", *numbers) + body[4 * count :]
    else:
        return damage_bytes(data, draw)
    return len(header).to_bytes(8, "little") + header + body
