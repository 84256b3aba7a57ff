"""OpenAI's models, completions and chat completions."""
