"""
The program in which a user's inference code runs: a child process of the model server.

It depends on the standard library only, because the Python that runs it may be one of the user's, and imports nothing
of `headrace`. `headrace.serving.handlers` starts it and talks to it in `frames`.
"""
