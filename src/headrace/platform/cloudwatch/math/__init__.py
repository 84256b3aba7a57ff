"""Metric math: expressions over time series. Pure."""
