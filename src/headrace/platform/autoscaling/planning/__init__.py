"""Scalable targets, policies and schedules, and the capacity that they lead to. Pure."""
