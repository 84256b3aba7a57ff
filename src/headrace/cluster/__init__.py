"""Where workers run: launchers that start, watch and stop them, and what happens inside a worker's process."""
