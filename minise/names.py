"""The engines' names, known without importing torch."""

LAYOUTS = ("separate", "dense", "tree")  # ways to lay out prompts, whose tokens are counted
ENGINES = (*LAYOUTS, "plain")  # plain runs the layout of dense
