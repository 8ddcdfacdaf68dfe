"""Text that the model writes: a tree of prompts that grows, and a checkpoint's chat template."""
