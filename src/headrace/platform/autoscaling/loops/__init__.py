"""The autoscaler, and the waker of targets scaled to zero."""
