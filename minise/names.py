"""The names that the command line and the library share, known without importing torch."""

PRESETS = ("paper", "authors-code")
LAYOUTS = ("separate", "dense", "tree")  # ways to lay out prompts, whose tokens are counted
ENGINES = (*LAYOUTS, "plain")  # plain runs the layout of dense
DTYPES = ("float64", "float32", "bfloat16", "float16")
SHORT_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
AUTO = "auto"  # a dtype or a device that is chosen by what fits: placement.py
FOUR_BIT = ("nf4", "fp4")
DEFAULT_MODEL = "weights/tiny-llama"  # ships with the package
