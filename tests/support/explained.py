"""The settings and texts with which the tests of `minise.explain` make pages."""

from __future__ import annotations

from typing import Any

from minise import Question

SETTINGS: dict[str, Any] = {"group_size": 2, "trials": 3, "seed": 4}
HOSTILE = (
    "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1> & {{ 7*7 }} \u2028\x07\"'"
)
FOREIGN = Question("ما هي؟ 👨\u200d👩\u200d👧", ["القاهرة", "é", "ירושלים", "è"])
