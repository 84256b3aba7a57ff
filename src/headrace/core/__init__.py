"""Errors, generation types and telemetry: imported by every package, imports none of them."""
