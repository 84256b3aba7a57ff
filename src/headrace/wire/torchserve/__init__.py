"""TorchServe: a prompt as plain text, and the prompt and its continuation as plain text, word by word."""
