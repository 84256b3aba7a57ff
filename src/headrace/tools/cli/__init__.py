"""The `headrace` command: parses arguments, decides what code may serve a model, and prints."""
