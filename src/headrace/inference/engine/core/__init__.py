"""The engine proper: scheduling, KV blocks, steps and their results. Synchronous, on one thread."""
