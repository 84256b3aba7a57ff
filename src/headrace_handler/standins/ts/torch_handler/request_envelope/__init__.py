"""Envelopes: they take the requests of a format apart before a handler, and put its results together after it."""
