"""Text that the model writes: a tree of prompts that grows, token by token.

generation.py writes after several prompts at once, chat.py reads a checkpoint's stop tokens and
chat template, and templates.py renders it in a process of its own. This room may import
`groupings`, `data`, `loading`, the core and `exact`.
"""
