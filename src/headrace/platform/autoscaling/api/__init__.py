"""Handlers of Application Auto Scaling's operations."""
