"""
Call the session helpers of a SageMaker SDK, and every other service that it has clients for, with AWS out of reach.

    python session_helpers.py MODULE...

Runs in the SDK's own environment, which has no Headrace, in a shell that points at a platform. Prints a line of JSON
for each call: its name, its result or error, and the addresses other than this machine's that it asked for.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import UnknownServiceError

_CLIENT = re.compile(r"""\b(?:client|resource)\(\s*(?:service_name=)?["']([a-z0-9-]+)["']""")
_SERVED = {"application-autoscaling", "cloudwatch", "iam", "logs", "s3", "sagemaker", "sagemaker-runtime", "sts"}
_HELPERS = ("get_caller_identity_arn", "account_id", "default_bucket")
_LOCAL = ("127.0.0.1", "localhost", "::1")
elsewhere: list[str] = []


def watch(event: str, args: tuple[Any, ...]) -> None:
    """Refuse to look up or connect to anything but this machine."""
    host = None
    if event == "socket.getaddrinfo":
        host = args[0].decode() if isinstance(args[0], bytes) else args[0]
    elif event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    if host is not None and host not in _LOCAL:
        elsewhere.append(str(host))
        raise OSError(f"{host} is out of reach.")


def call(name: str, function: Callable[[], object]) -> None:
    """Call a function and print what it did."""
    elsewhere.clear()
    line: dict[str, object] = {"name": name, "result": "", "error": ""}
    try:
        line["result"] = str(function())
    except Exception as error:  # noqa: BLE001 -- every error is a result
        line["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps({**line, "elsewhere": elsewhere}), flush=True)


def session_helpers(module: Any) -> None:
    """Call the helpers of a module that has a `Session`."""
    named = module.__name__
    call(f"{named}.Session", module.Session)
    call(f"{named}.get_execution_role", module.get_execution_role)
    session = module.Session()
    call(f"{named}.get_execution_role(session)", lambda: module.get_execution_role(session))
    for helper in _HELPERS:
        call(f"{named}.{helper}", getattr(session, helper))


def services_of(module: Any) -> Iterator[str]:
    """Yield the services of boto3 that the sources of an SDK name."""
    (folder,) = {Path(path).parent if Path(path).is_file() else Path(path) for path in list(module.__path__)[:1]}
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*.py"))
    yield from sorted({name for text in texts for name in _CLIENT.findall(text)} - _SERVED)


def first_operation(service: str) -> Callable[[], object]:
    """Return the call of an operation of a service, with whatever its path needs."""
    client = boto3.client(service, config=Config(retries={"total_max_attempts": 1}, parameter_validation=False))
    model = client.meta.service_model
    operations = [model.operation_model(name) for name in sorted(model.operation_names)]
    operation = min(operations, key=lambda found: found.http["requestUri"].count("{"))
    shape = operation.input_shape
    in_path = [name for name, member in shape.members.items() if member.serialization.get("location") == "uri"]
    return lambda: getattr(client, xform_name(operation.name))(**dict.fromkeys(in_path, "x"))


def main() -> None:
    """Call all that the arguments name."""
    modules = [import_module(name) for name in sys.argv[1:]]
    sys.addaudithook(watch)
    for module in modules:
        session_helpers(module)
    roots = {name.partition(".")[0] for name in sys.argv[1:]}
    for service in sorted({name for root in roots for name in services_of(import_module(root))}):
        try:
            call(f"service {service}", first_operation(service))
        except UnknownServiceError:
            continue  # newer than this boto3


if __name__ == "__main__":
    main()
