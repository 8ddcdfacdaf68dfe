"""Text that the model writes: a tree of prompts that grows, token by token.

generation.py writes after several prompts at once, and chat.py reads a checkpoint's stop tokens and
chat template. This room may import `groupings`, `data`, `loading`, the core and `exact`.
"""
