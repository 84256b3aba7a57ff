"""OpenAI's API: models, completions and chat completions."""
