"""
The platform, `headrace up`: a local SageMaker that keeps endpoints running.

Handlers of `control`, `autoscaling` and `cloudwatch` write what should be into the store (`state`); their loops make it
so through `cluster`, which starts, watches and stops workers; `gateway` reads routes from the store and relays requests
to those workers. They meet in the store alone, so any of them can be killed at any point. `storage` is the S3 side, and
`host` puts all parts on one port, with keys, console, backups and several processes.

Start with `control/planning/endpoint.py` (what an endpoint needs next), `gateway/forwarding.py` (one request) and
`host/assembly.py` (how the parts are connected). The platform never imports the engine or the model server.
"""
