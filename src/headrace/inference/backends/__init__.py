"""The choice of a backend, and those beside the native engine: each module loads one."""
