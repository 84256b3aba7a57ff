"""The errors of the Java servers: TorchServe, DJL Serving and the Multi Model Server."""

import json


def error_body(status: int, kind: str, message: str) -> bytes:
    """Return the body of an error, as these servers write it."""
    return json.dumps({"code": status, "type": kind, "message": message}, indent=2).encode() + b"\n"
