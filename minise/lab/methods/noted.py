"""An answer with something beside it that a run keeps."""

from dataclasses import dataclass, field
from typing import Any

from minise.method import Answer


@dataclass(frozen=True, eq=False)
class NotedAnswer(Answer):
    """notes: what the lines of a run have beside the answer, as JSON."""

    notes: dict[str, Any] = field(default_factory=dict, repr=False)
