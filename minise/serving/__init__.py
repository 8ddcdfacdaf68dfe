"""Where models run elsewhere: prompts as texts, and Self-Ensemble in other evaluation programs."""
