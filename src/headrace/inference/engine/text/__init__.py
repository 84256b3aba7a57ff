"""Tokens to text: detokenisation and stop strings."""
