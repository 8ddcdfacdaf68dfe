"""Test vectors for packed prompts: `packed-vectors ADAPTER.py DTYPE`, or pytest --packed-vectors.

The program needs numpy and safetensors. docs/vectors.md tells how an adapter is written, and
docs/packed.md what each MUST says.
"""

from pathlib import Path

__version__ = "1.0.0"
FORMAT = "1.0"  # of the files: what version 1.0 can read stays readable with 1.x
HERE = Path(__file__).parent
# In a wheel the vectors lie inside the package, in a checkout beside it.
VECTORS = HERE if (HERE / "v1").is_dir() else HERE.parent
