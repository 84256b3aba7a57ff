"""`headrace invoke`: send a request to an endpoint with boto3, and explain its errors in terms of the command line."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import click

from headrace.core.errors import HeadraceError
from headrace.tools.cli.answers import CONTINUES_TEXT, waiting_for_answer, write_text
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.endpoints import cause_first
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.invoke_body import (
    CONTEXT_EXCEEDED,
    AnswerText,
    ending_note,
    finish_reason_of,
    openai_bodies,
    request_body,
    text_of_value,
)
from headrace.tools.cli.platform_client import Platform, error_of, opened_platform, platform_option, unknown_name
from headrace.tools.cli.progress import watching
from headrace.tools.cli.sampling_options import sampling_option
from headrace.tools.cli.tables import count_of

_READ_TIMEOUT_S = 600.0
_STAGE_TIMEOUT_S = 2.0
_READY = frozenset({"InService", "Updating", "RollingBack", "SystemUpdating"})
_MAX_SHOWN = 500
"""Characters of a model's error message that are shown."""

EXAMPLES = """
headrace invoke smollm2 "What is 2+2?"             print the answer
headrace invoke smollm2 "What is rain?" --stream -n 100    stream 100 tokens
headrace invoke smollm2 "Hi" -P top_p=0.9          set any parameter
headrace invoke smollm2 "The sea is" --completion  continue a text
headrace invoke smollm2 '{"inputs": "Hi"}' --raw   send a body as it is
cat prompt.txt | headrace invoke smollm2 -         read the prompt from a pipe
headrace invoke irises --content-type text/csv "5.1,3.5,1.4,0.2"
"""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("name")
@click.argument("prompt")
@platform_option
@click.option("--stream", "is_streamed", is_flag=True, help="Stream the answer.")
@sampling_option("--max-new-tokens -n", note="1024, or the server's")
@sampling_option("--temperature -t", note="0, or the server's")
@click.option(
    "--parameter", "-P", "parameters", multiple=True, metavar="NAME=VALUE", help="Any other parameter. Repeatable."
)
@click.option(
    "--completion",
    "is_completion",
    is_flag=True,
    help="Continue the prompt as text, without the model's chat template.",
)
@click.option("--raw", is_flag=True, help="Print the bytes of the answer unchanged.")
@click.option("--content-type", metavar="TYPE", help="Send PROMPT unchanged, as this type. Implies --raw.")
@click.option("--accept", metavar="TYPE", help="Type of answer to ask for.")
@click.option("--variant", metavar="NAME", help="Variant of the endpoint, regardless of weights.  [default: by weight]")
def invoke(  # noqa: PLR0913 -- its options
    *,
    name: str,
    prompt: str,
    url: str | None,
    is_streamed: bool,
    max_new_tokens: int | None,
    temperature: float | None,
    parameters: tuple[str, ...],
    is_completion: bool,
    raw: bool,
    content_type: str | None,
    accept: str | None,
    variant: str | None,
) -> None:
    """
    Send PROMPT to the endpoint or inference component NAME and print its answer; `-` reads it from standard input.

    A text becomes a user message, `{"messages": […], "max_tokens": 1024, "temperature": 0}`, if the endpoint's server
    lists its model with a chat template. For a base model, and with --completion, it becomes `{"prompt": …}`. If the
    answer is cut at `max_tokens`, or stopped because it repeats itself, a note on stderr says so.

    For other servers, and with a parameter that only TGI or LMI has (`-P details=true`), a text becomes
    `{"inputs": …, "parameters": …}`; the answer does not repeat the prompt without `-P return_full_text=true`. The
    command sends a prompt that is a JSON object unchanged.

    A model with its own code reads other types too: name one with --content-type.
    """
    given = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    named = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    parameters += tuple(f"{key}={value}" for key, value in named.items() if value is not None)
    inputs = request_body(
        given, parameters, is_streamed=is_streamed, content_type=content_type, is_completion=is_completion
    )
    is_text = inputs != given
    more = {"TargetVariant": variant} if variant else {}
    if accept is not None:
        more["Accept"] = accept
    with opened_platform(url) as platform, explained_errors(platform, name, variant):
        with watching(name, partial(_stage, platform, name)):
            models = _models(platform, name, variant) if is_text else []
        if not (is_completion or raw) and any(model.get("has_chat_template") is False for model in models):
            click.echo(f"{name} {CONTINUES_TEXT}", err=True)
        bodies = openai_bodies(given, parameters, models, is_streamed=is_streamed, is_completion=is_completion)
        request = {"EndpointName": name, "ContentType": content_type or "application/json", **more}
        client = platform.client("sagemaker-runtime", read_timeout_s=_READ_TIMEOUT_S)
        operation = client.invoke_endpoint_with_response_stream if is_streamed else client.invoke_endpoint
        call = partial(_call, platform, operation, request)
        with watching(name, partial(_stage, platform, name)):
            response = _call_within(call, [json.dumps(body) for body in bodies] or [inputs])
        parts = _parts(response["Body"], is_streamed=is_streamed)
        if raw or content_type is not None:
            for part in parts:
                sys.stdout.buffer.write(part)
                sys.stdout.flush()
            return
        text, finish_reason = _write_stream(parts) if is_streamed else _write_whole(b"".join(parts))
    note = ending_note(finish_reason, next(iter(bodies), None), has_text=bool(text.strip()))
    if note is not None:
        click.echo(note, err=True)


def _stage(platform: Platform, name: str) -> str | None:
    """Return the reason for which a request waits; None if stderr is no terminal and no worker has to start."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = platform.client("sagemaker", read_timeout_s=_STAGE_TIMEOUT_S)
    try:
        variants = client.describe_endpoint(EndpointName=name)["ProductionVariants"]
    except (BotoCoreError, ClientError, LookupError):
        variants = []
    current = sum(variant.get("CurrentInstanceCount") or 0 for variant in variants)
    desired = sum(variant.get("DesiredInstanceCount") or 0 for variant in variants)
    if variants and not current:
        return f"starting from zero, {current} of {count_of(max(desired, 1), 'worker')} ready"
    return waiting_for_answer()


def _models(platform: Platform, name: str, variant: str | None) -> list[dict[str, Any]]:
    from botocore.exceptions import ClientError

    models = platform.list_models(name, timeout_s=_READ_TIMEOUT_S, variant=variant)
    if not models:
        with suppress(ClientError):  # the request itself reports what is wrong with the name
            component = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
            target = f"{component['EndpointName']}/inference-components/{name}"
            models = platform.list_models(target, timeout_s=_READ_TIMEOUT_S, variant=variant)
    return models


def _call_within(call: Callable[[str | bytes], dict[str, Any]], bodies: Sequence[str | bytes]) -> dict[str, Any]:
    """Send the first body, or the next one if its maximum of tokens is more than the context has left."""
    from botocore.exceptions import ClientError

    for body in bodies[:-1]:
        try:
            return call(body)
        except ClientError as error:
            if CONTEXT_EXCEEDED not in str(error.response.get("OriginalMessage")):
                raise
    return call(bodies[-1])


def _call(
    platform: Platform, call: Callable[..., dict[str, Any]], request: dict[str, Any], body: str | bytes
) -> dict[str, Any]:
    """Invoke the endpoint, or the component of that name if there is no endpoint or it only hosts components."""
    from botocore.exceptions import ClientError

    try:
        return call(**request, Body=body)
    except ClientError as error:
        if error_of(error)[0] != "ValidationError":
            raise
        name = request["EndpointName"]
        try:
            component = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
        except ClientError:
            raise error from None
    request = {**request, "EndpointName": component["EndpointName"], "InferenceComponentName": name}
    return call(**request, Body=body)


def _parts(body: Any, *, is_streamed: bool) -> Iterator[bytes]:
    """Yield the bytes of an answer as they come."""
    from botocore.exceptions import EventStreamError

    if not is_streamed:
        yield body.read()
        return
    try:
        for event in body:
            yield event.get("PayloadPart", {}).get("Bytes", b"")
    except EventStreamError as error:
        raise Failed(f"The response stream ended with an error: {error_of(error)[1]}") from error
    finally:
        body.close()


def _write_whole(body: bytes) -> tuple[str, str | None]:
    """Print the answer; return its text and finish reason."""
    try:
        value = json.loads(body)
    except ValueError:
        return _write_stream([body])
    found = text_of_value(value)
    text = body.decode("utf-8", "replace") if found is None else found
    write_text(text.rstrip("\n") + "\n")
    return text, finish_reason_of(value)


def _write_stream(parts: Iterable[bytes]) -> tuple[str, str | None]:
    """Print the answer as it comes; return its text and finish reason."""
    reader, texts = AnswerText(), []
    for part in parts:
        texts.append(reader.feed(part))
        write_text(texts[-1])
    texts.append(reader.finish())
    write_text(texts[-1].rstrip("\n") + "\n")
    return "".join(texts), reader.finish_reason


@contextmanager
def explained_errors(platform: Platform, name: str, variant: str | None) -> Iterator[None]:
    """
    Translate the errors of an invocation.

    Raises:
        UserFailed: the name or the variant does not exist, or the model refused the request.
        Failed: the model failed.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error_of(error)[0]
        if code == "ModelError":
            raise _model_failed(platform, name, error.response) from error
        why = None
        if code == "ValidationError":
            with suppress(BotoCoreError, ClientError, HeadraceError):  # the platform's own message remains
                why = _problem(platform, name, variant)
        if why is None:
            raise
        raise why from error


def _model_failed(platform: Platform, name: str, response: dict[str, Any]) -> Failed:
    status = int(response.get("OriginalStatusCode") or 0)
    message = answer_message(str(response.get("OriginalMessage") or "")).strip() or "no message"
    text = f"The model answered {status}: {message}"
    if 400 <= status < 500:
        return UserFailed(text)
    return Failed(f"{text}\n`headrace logs {name}{platform.option}` shows the logs of its workers.")


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


def _problem(platform: Platform, name: str, variant: str | None) -> UserFailed | None:
    """Return why an endpoint or component of that name takes no request; None if the platform's message says it."""
    found = platform.endpoint(name)
    if found is None:
        return unknown_name(name) if platform.component(name) is None else None
    status = found["EndpointStatus"]
    if status == "Failed":
        return UserFailed(f"The endpoint {name} has failed: {cause_first(found.get('FailureReason', ''))}")
    if status not in _READY:
        return UserFailed(f"The endpoint {name} is {status}. `headrace status --wait` waits until it is in service.")
    variants = [each["VariantName"] for each in found.get("ProductionVariants") or ()]
    if variant is not None and variant not in variants:
        return UserFailed(f"{name} has no variant {variant}. It has: {', '.join(variants)}.")
    if names := platform.component_names(name):
        listed = ", ".join(names)
        return UserFailed(f"The models of {name} are inference components. Invoke one of them: {listed}.")
    return None
