"""Model families: each file maps a config or GGUF metadata to a `ModelSpec`, and names its tensors."""
