"""The names that the command line and the library share, known without importing torch."""

PRESETS = ("paper", "authors-code")
ENGINES = ("separate", "dense", "tree")
DTYPES = ("float64", "float32", "bfloat16", "float16")
DEFAULT_MODEL = "weights/tiny-llama"  # ships with the package
