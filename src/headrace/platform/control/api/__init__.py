"""Handlers of AWS operations: they validate a call, write the desired state to the store and describe it."""
