"""The engine: continuous batching by a scheduler, KV blocks, prefix cache, sampling state and streaming text."""
