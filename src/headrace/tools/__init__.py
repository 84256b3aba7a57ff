"""
Tools: what people type, the `headrace` command (`cli`) and its load generator (`bench`).

`bench` speaks HTTP like any client. Start with `cli/main.py`, which lists the commands; each has a file of its own.
"""
