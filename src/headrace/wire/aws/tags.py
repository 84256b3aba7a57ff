"""Limits on the tags of resources that all services share."""

from typing import Final

MAX_TAGS: Final = 50
"""Tags of one resource. Source: AWS General Reference, "Tagging AWS resources"."""
