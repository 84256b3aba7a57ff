"""What scales on its own: the autoscaler, and the waker of targets at zero."""
