"""Records of what was asked for and what was seen: the one place where API handlers, reconciler and gateway meet."""
