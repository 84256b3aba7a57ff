"""Loops that make the observed state follow the desired one, and those that publish metrics of it."""
