"""Models that run elsewhere: in a server (vLLM, SGLang, llama.cpp, any that speaks OpenAI's
completions), or in transformers by whole prompts; Self-Ensemble in other evaluation programs."""
