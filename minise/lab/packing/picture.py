"""The mask of a small row as text."""

from __future__ import annotations

from torch import Tensor

from minise.lab.packing.packing import Packing


def draw(p: Packing) -> str:
    """The mask as text: a line for each token, a column for each token that it could attend to."""
    width = max(8, *(len(name) for name in p.names))
    lines = [f"token  {'of':<{width}}  position  attends to"]
    for row in range(p.T):
        given = int(p.positions[0, row])
        place = int(p.places[0, row])
        position = f"{given}"
        cells = ""
        if p.real[row]:
            if given != place:
                position = f"{given} ({place})"
            cells = draw_row(p.mask[row], p.right[row])
        name = p.names[int(p.parts[row])]
        lines.append(f"{row:>5}  {name:<{width}}  {position:>8}  {cells}".rstrip())
    lines.append("█ right  · hidden  ! leaks  o missing  (n) the right position")
    return "\n".join(lines)


def draw_row(given: Tensor, right: Tensor) -> str:
    cells = []
    for is_given, is_right in zip(given.tolist(), right.tolist(), strict=True):
        if is_given:
            cells.append("█" if is_right else "!")
        else:
            cells.append("o" if is_right else "·")
    return "".join(cells)
