"""Errors of `headrace invoke` in the terms of the command line: what the name is, and what the model answered."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.tools.cli.components import components_of, described_component
from headrace.tools.cli.failures import cause_first
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.platform_client import Platform, error_of, is_not_found

_READY = frozenset({"InService", "Updating", "RollingBack", "SystemUpdating"})
_MAX_SHOWN = 500


@contextmanager
def explained_errors(platform: Platform, name: str, variant: str | None) -> Iterator[None]:
    """
    Translate the errors of an invocation.

    Raises:
        UserFailed: the name or the variant does not exist, or the model refused the request.
        Failed: the model failed.
    """
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        code = error_of(error)[0]
        if code == "ModelError":
            raise _model_failed(platform, name, error.response) from error
        why = _why_not(platform, name, variant) if code == "ValidationError" else None
        if why is None:
            raise
        raise UserFailed(why) from error


def answer_message(body: str) -> str:
    """Return the message in the error response of a model server, or the response if it has another form."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key] if not isinstance(value[key], dict) else value[key].get("message")
            break
    text = value if isinstance(value, str) else body
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _model_failed(platform: Platform, name: str, response: dict[str, Any]) -> Failed:
    status = int(response.get("OriginalStatusCode") or 0)
    message = answer_message(str(response.get("OriginalMessage") or "")).strip() or "no message"
    text = f"The model answered {status}: {message}"
    if 400 <= status < 500:
        return UserFailed(text)
    return Failed(f"{text}\n`headrace logs {name}{platform.option}` shows the logs of its workers.")


def _why_not(platform: Platform, name: str, variant: str | None) -> str | None:
    """Return why an endpoint or component of that name takes no request; None if the platform's message says it."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _problem(platform, name, variant)
    except (BotoCoreError, ClientError, HeadraceError):
        return None


def _problem(platform: Platform, name: str, variant: str | None) -> str | None:
    from botocore.exceptions import ClientError

    try:
        found = platform.sagemaker.describe_endpoint(EndpointName=name)
    except ClientError as error:
        if not is_not_found(error) or described_component(platform, name) is not None:
            return None
        return f"There is no endpoint or inference component called {name}. `headrace ls` lists them."
    status = found["EndpointStatus"]
    if status == "Failed":
        return f"The endpoint {name} has failed: {cause_first(found.get('FailureReason', ''))}"
    if status not in _READY:
        return f"The endpoint {name} is {status}. `headrace status --wait` waits until it is in service."
    variants = [each["VariantName"] for each in found.get("ProductionVariants") or ()]
    if variant is not None and variant not in variants:
        return f"{name} has no variant {variant}. It has: {', '.join(variants)}."
    names = [component["InferenceComponentName"] for component in components_of(platform, name)]
    return f"The models of {name} are inference components. Invoke one of them: {', '.join(names)}." if names else None
