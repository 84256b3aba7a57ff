"""TorchServe: a plain-text prompt in, the prompt and its continuation out as plain text, word by word."""
