"""Models for the tests of the studies: those of the suite."""

from tests.conftest import lm, qwen

__all__ = ["lm", "qwen"]
