"""Envelopes, which unpack the requests of a format for a handler and pack its results."""
