"""Pure planning: desired and observed state give the next actions, placements and routes."""
