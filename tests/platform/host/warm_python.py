"""
Run scripts in a Python that is impatient and remembers, and that may have imported an SDK already.

    python -P warm_python.py once SCRIPT [ARGUMENT...]            in this process
    python -P warm_python.py serve LISTENER MODULE...             import modules, then fork for each script
    python -I -S warm_python.py run SOCKET SCRIPT [ARGUMENT...]   in a fork of such a server

A script runs as by `python -W ignore SCRIPT ...`, in the folder, the environment and the files of its caller, but for
its patience: the SDKs sleep for half a minute between two looks at an endpoint. To import one takes 3 s of CPU time.
Imports no part of Headrace: it runs in the environments of the SDKs.
"""

import contextlib
import gc
import json
import os
import socket
import sys
from pathlib import Path

HEADER_BYTES = 8
SERVICES = ("sagemaker", "sagemaker-runtime", "s3", "sts", "iam", "logs")
"""Those whose models nearly every script needs."""


def run_here(arguments: list[str]) -> None:
    """Run a script in this process."""
    import runpy

    sys.argv[:] = arguments
    sys.path.insert(0, "")
    runpy.run_path(arguments[0], run_name="__main__")


def become_impatient() -> None:
    import time
    import warnings

    warnings.simplefilter("ignore")
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 1))


def remember() -> None:
    """
    Do once what the SDKs do again and again, more than half of a script's CPU time.

    They check the schema of their own settings for each setting that they look up, thirty times a script, and parse
    the models of the services for each session.
    """
    import functools

    import jsonschema
    from botocore.loaders import JSONFileLoader
    from jsonschema.validators import validator_for

    validators = {}

    def validate(instance: object, schema: dict) -> None:
        if id(schema) not in validators:
            validators[id(schema)] = validator_for(schema)(schema)
        validators[id(schema)].validate(instance)

    jsonschema.validate = validate
    load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _loader, path: load(path)


def serve(listener: socket.socket, modules: list[str]) -> None:
    """Fork for each script until stdin ends."""
    import importlib
    import select

    for name in modules:
        importlib.import_module(name)
    boto3 = importlib.import_module("boto3")
    for service in SERVICES:
        boto3.Session().client(service)
    gc.collect()
    gc.freeze()  # to visit all that the SDK has made, each fork would copy it
    guards = []
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        if (guard := os.fork()) == 0:
            listener.close()
            guard_script(caller)
            return
        guards.append(guard)
        caller.close()
    for guard in guards:
        os.waitpid(guard, 0)


def guard_script(caller: socket.socket) -> None:
    """Fork for the script, tell its caller how it ends, and end it with its caller."""
    import select
    import signal

    header, files, _, _ = socket.recv_fds(caller, HEADER_BYTES, 3)
    request = read(caller, int.from_bytes(header, "big"))
    if (script := os.fork()) == 0:
        caller.close()
        take_over(request, files)
        run_here(request["arguments"])
        return
    for file in files:
        os.close(file)
    ended = os.pidfd_open(script)
    if ended not in select.select([ended, caller], [], [])[0]:
        os.kill(script, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
    with contextlib.suppress(OSError):
        caller.sendall(bytes([code & 255]))
    os._exit(0)


def read(caller: socket.socket, num_bytes: int) -> dict:
    with caller.makefile("rb") as file:
        return json.loads(file.read(num_bytes))


def take_over(request: dict, files: list[int]) -> None:
    """Take the files, the folder and the environment of the caller."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])


def call(path: str, arguments: list[str]) -> int:
    """Have a server run a script; return its exit code."""
    request = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(body).to_bytes(HEADER_BYTES, "big")], [0, 1, 2])
        server.sendall(body)
        return server.recv(1)[0]


if __name__ == "__main__":
    mode, target, *rest = sys.argv[1:]
    if mode == "run":
        sys.exit(call(target, rest))
    gc.set_threshold(20_000)  # more seldom than usual: nearly all that an import makes stays
    become_impatient()
    remember()
    if mode == "once":
        run_here([target, *rest])
    else:
        serve(socket.socket(fileno=int(target)), rest)
