"""
Serving: a model behind HTTP, `headrace serve`, in the dialect of every client.

`wire` turns bytes into values and back, one folder per dialect, without I/O; `settings` turns flags, environment and
files of the model into one checked value. `http` is the HTTP/1.1 server and client, `artifacts` fetches and unpacks
files, `handlers` runs a user's own code in child processes, and `server` joins them around one engine.

Start with `wire/dialect.py` (what a dialect is), `server/generation.py` (one request from its body to its last byte)
and `handlers/pool.py` (the children with user code). Nothing here knows endpoints, AWS operations' effects or the
store.
"""
