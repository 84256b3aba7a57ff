"""Loops that make the observed state follow the desired one: the reconciler and what it acts through."""
