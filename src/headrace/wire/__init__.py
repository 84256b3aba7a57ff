"""Bytes to typed values and back, one folder for each dialect. No I/O, no model, no clock."""
