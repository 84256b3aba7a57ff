"""Which tokens next, for whom: scheduler, KV blocks, prefix cache, sampling state and streaming text."""
