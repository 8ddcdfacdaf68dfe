"""How well a colour is told from its ground (WCAG 2.1)."""

from __future__ import annotations

from collections.abc import Sequence


def from_hex(colour: str) -> list[float]:
    """A colour "#rrggbb" as red, green and blue, 0 to 1 each."""
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(rgb: Sequence[float]) -> float:
    """The relative luminance of red, green and blue, 0 to 1 each."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """1 (alike) to 21 (black on white)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
