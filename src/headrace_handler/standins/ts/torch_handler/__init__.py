"""Base classes of handlers, and the default handlers that a model names instead of a file."""
