"""Checkpoints: a folder or the hub, config.json, safetensors, and code of the user's own.

The names below are known without importing torch.
"""

DTYPES = ("float64", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "weights/tiny-llama"  # ships with the package
