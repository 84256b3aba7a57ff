"""Records of desired and observed state: the only place where API handlers, reconciler and gateway meet."""
