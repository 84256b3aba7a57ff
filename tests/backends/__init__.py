"""Tests of `headrace.backends`."""
