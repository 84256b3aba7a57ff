"""The prefix cache on disk: KV blocks and states in files, which outlive the server."""
