"""User code in child processes: what to run, the processes, their pool, and the errors that a child cannot answer."""
