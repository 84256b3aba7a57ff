"""The container's folders and settings, as user code reads them."""

import os
from pathlib import PurePath

from . import content_types, parameters

base_dir = os.environ.get(parameters.BASE_PATH_ENV, "/opt/ml")
# Set by the process that serves: the model need not lie in the container's folder.
model_dir = os.environ.get("SM_MODEL_DIR") or str(PurePath(base_dir, "model"))
code_dir = str(PurePath(model_dir, "code"))


def _int(name: str, default: str) -> int:
    return int(os.environ.get(name, default))


class Environment:
    """A snapshot of the settings; unset ones have the toolkit's defaults."""

    def __init__(self) -> None:
        program = os.environ.get(parameters.USER_PROGRAM_ENV, "inference.py")
        seconds = os.environ.get(parameters.MODEL_SERVER_TIMEOUT_SECONDS_ENV)
        request_mb = os.environ.get(parameters.MAX_REQUEST_SIZE)
        port = os.environ.get(parameters.BIND_TO_PORT_ENV, "8080")
        self.module_name = program.removesuffix(".py")
        self.model_server_timeout = _int(parameters.MODEL_SERVER_TIMEOUT_ENV, "60")
        self.model_server_timeout_seconds = None if seconds is None else int(seconds)
        self.model_server_workers = os.environ.get(parameters.MODEL_SERVER_WORKERS_ENV)
        self.startup_timeout = _int(parameters.STARTUP_TIMEOUT_ENV, "600")
        self.default_accept = os.environ.get(parameters.DEFAULT_INVOCATIONS_ACCEPT_ENV, content_types.JSON)
        self.inference_http_port = port
        self.management_http_port = port
        self.safe_port_range = os.environ.get(parameters.SAFE_PORT_RANGE_ENV)
        self.vmargs = os.environ.get(parameters.MODEL_SERVER_VMARGS, "-XX:-UseContainerSupport")
        self.max_request_size = None if request_mb is None else int(request_mb) * 1024 * 1024
