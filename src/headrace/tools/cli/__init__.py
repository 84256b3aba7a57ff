"""The `headrace` command: argument parsing and printing, nothing else."""
