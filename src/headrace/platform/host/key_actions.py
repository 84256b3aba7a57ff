"""
The actions of requests that no operation of AWS answers, for the limits of access keys.

The gateway and the operations of AWS check the limits themselves: they know the model, or the operation.
"""

from collections.abc import Callable, Iterable
from typing import Final

from headrace.platform.host.access import bucket_call, console_call
from headrace.serving.http.asgi import Scope, caller_of, header, limits_of
from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.signature_faults import Fault, fault_error
from headrace.serving.wire.key_limits import denied

Actions = Callable[[Scope], Iterable[str]]

_MANAGES_KEYS: Final = "headrace:ManageAccessKeys"
"""No key with limits may do it, whatever its actions: it could lift them."""
_OF_OBJECTS: Final = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}
"""Actions on an object by method; all others write it."""


def s3_actions(scope: Scope) -> Iterable[str]:
    """Yield the actions of a request for a bucket or an object: a copy also reads its source."""
    call = bucket_call(scope)
    yield _OF_OBJECTS.get(scope["method"], "s3:PutObject") if call is None else f"s3:{call.operation}"
    if header(scope, b"x-amz-copy-source") is not None:
        yield "s3:GetObject"


def console_actions(scope: Scope) -> Iterable[str]:
    """Yield the action of a request to the API of the console."""
    call = console_call(scope)
    yield _MANAGES_KEYS if call is None else f"headrace:{call.operation}"


def metrics_actions(_scope: Scope) -> Iterable[str]:
    """Yield the action of a request for a page of metrics."""
    yield "headrace:GetMetrics"


def check_actions(actions: Actions | None, scope: Scope, request: HttpRequest) -> None:
    """Raise `AwsError` unless the limits of the caller's key allow the actions of a request."""
    limits = limits_of(scope)
    if actions is None or limits is None:
        return
    for action in actions(scope):
        if action == _MANAGES_KEYS or not limits.allows_action(action):
            raise fault_error(request, Fault.DENIED, denied(caller_of(scope), action, scope["path"]))
