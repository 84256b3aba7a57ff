"""Executes one step: the native CPU runtime, a numpy reference that defines what is right, and a fake for tests."""
