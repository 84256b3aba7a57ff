"""Bytes to typed values and back, one file for each dialect. No I/O, no model, no clock."""
