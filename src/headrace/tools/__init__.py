"""
Tools: what people type. `cli` is the `headrace` command, `bench` is its load generator, which speaks HTTP like any client.

Start with `cli/main.py`, which lists the commands; each has a file of its own.
"""
