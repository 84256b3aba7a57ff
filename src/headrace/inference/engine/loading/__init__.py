"""Loading a model into an engine: weight formats, limits, the memory plan, calibration."""
