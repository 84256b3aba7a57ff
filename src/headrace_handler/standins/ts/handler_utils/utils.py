"""Streaming of responses, and imports by name."""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..context import Context


def send_intermediate_predict_response(
    ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Context
) -> None:
    """
    Send a part of the response to each request of a batch, or of a part of the batch; wait for slow clients.

    Of a job of several processes, only the first one sends.

    Args:
        ret: the parts, by the keys of `req_id_map`.
        req_id_map: the requests' ids.
        message: the text of the error if `code` is not 200.
        code: 200, or the status of an error that ends the requests.
        context: the context that the handler was called with.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        context.cl_socket.send_intermediate(ret, req_id_map, message, code)


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Import a class by its name with that of its module, relative to `module_prefix` if there is one."""
    if not class_name:
        raise ImportError("class name is not defined")
    module_name, _, name = class_name.rpartition(".")
    full_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not full_name:
        raise ImportError("module name is not defined.")
    found = getattr(importlib.import_module(full_name), name, None)
    if found is None:
        raise ImportError(f"class:{name} not found in module:{full_name}.")
    return found
