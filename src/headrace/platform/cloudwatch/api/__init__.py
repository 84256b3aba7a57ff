"""Handlers of CloudWatch's operations."""
