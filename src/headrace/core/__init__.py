"""Shared ground: errors, settings, telemetry, generation types. Imported by all, imports nothing of ours."""
