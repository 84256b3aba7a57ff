"""Parsing and rendering of requests and responses, one folder per dialect. No I/O, no model, no clock."""
