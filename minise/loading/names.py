"""The names of dtypes, 4-bit formats and the default model, known without importing torch."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
SHORT_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
AUTO = "auto"  # a dtype or a device that is chosen: checkpoint.py
FOUR_BIT = ("nf4", "fp4", "nf4-double")
DEFAULT_MODEL = "weights/tiny-llama"  # ships with the package
