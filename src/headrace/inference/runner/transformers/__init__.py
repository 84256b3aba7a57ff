"""A runner with the networks of transformers, on paged KV caches of our engine."""
