"""Constrained output: grammars and JSON schemas, compiled and enforced token by token."""
