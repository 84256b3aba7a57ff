"""Execution of one step: the native CPU runtime, the numpy reference that defines correctness, a fake for tests."""
