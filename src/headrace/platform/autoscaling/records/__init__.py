"""Reads and writes of the records that autoscaling keeps and scales, shared by handlers and loops."""
