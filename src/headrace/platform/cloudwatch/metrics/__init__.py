"""Metrics, their datapoints and statistics. Pure."""
