"""Alarm rules, their evaluation and their records. Pure."""
