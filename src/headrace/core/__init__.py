"""Shared ground: errors, settings, telemetry and the types of a generation. Imported by all, imports nothing of ours."""
