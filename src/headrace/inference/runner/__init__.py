"""Execution of one step: the native CPU runtime, and the numpy reference that defines correctness."""
