"""Workers: the launchers that start, observe and stop them, and the worker process itself."""
