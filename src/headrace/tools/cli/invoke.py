"""`headrace invoke`: send a request to an endpoint with boto3."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from headrace.tools.cli.answer_text import AnswerText, finish_reason_of, text_of_value
from headrace.tools.cli.answers import CONTINUES_TEXT
from headrace.tools.cli.group import Examples, Failed
from headrace.tools.cli.invoke_body import CONTEXT_EXCEEDED, ending_note, openai_body, request_body, without_maximum
from headrace.tools.cli.invoke_errors import explained_errors
from headrace.tools.cli.platform_client import Platform, error_of, find_platform, platform_option, translate_errors
from headrace.tools.cli.progress import watching
from headrace.tools.cli.tables import count_of
from headrace.tools.cli.terminal import waiting_for_answer, write_text

_READ_TIMEOUT_S = 600.0
_STAGE_TIMEOUT_S = 2.0

EXAMPLES = """
headrace invoke smollm2 "What is 2+2?"                        print the text of the answer
headrace invoke smollm2 --stream "What is rain?" -p max_tokens=100
headrace invoke smollm2 --completion "The sea is"             continue a text
headrace invoke smollm2 --raw '{"inputs": "The sea is", "parameters": {"details": true}}'
cat prompt.txt | headrace invoke smollm2 -                    read the prompt from standard input
headrace invoke irises --content-type text/csv "5.1,3.5,1.4,0.2"              a model with code of its own
headrace invoke irises --content-type application/x-npy --accept text/csv - < rows.npy
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("name")
@click.argument("prompt")
@platform_option
@click.option("--stream", "is_streamed", is_flag=True, help="Stream the answer.")
@click.option(
    "--parameter", "-p", "parameters", multiple=True, metavar="NAME=VALUE", help="Generation parameter. Repeatable."
)
@click.option(
    "--completion", "is_completion", is_flag=True, help="Continue PROMPT as text, without the model's chat template."
)
@click.option("--raw", is_flag=True, help="Print the bytes of the answer unchanged.")
@click.option("--content-type", metavar="TYPE", help="Send PROMPT unchanged, as this type. Implies --raw.")
@click.option("--accept", metavar="TYPE", help="Type of answer to ask for.")
@click.option("--target-variant", metavar="VARIANT", help="Invoke this variant, regardless of weights.")
def invoke(  # noqa: PLR0913 -- its options
    *,
    name: str,
    prompt: str,
    url: str | None,
    is_streamed: bool,
    parameters: tuple[str, ...],
    is_completion: bool,
    raw: bool,
    content_type: str | None,
    accept: str | None,
    target_variant: str | None,
) -> None:
    """
    Send PROMPT to the endpoint or inference component NAME and print its answer; `-` reads it from standard input.

    A text becomes a user message, `{"messages": […], "max_tokens": 1024, "temperature": 0}`, if the endpoint's server
    lists its model with a chat template. For a base model, and with --completion, it becomes `{"prompt": …}`.
    An answer that is cut at `max_tokens`, or stopped because it repeats itself, says so on stderr.

    For other servers, and with a parameter of TGI or LMI alone (`-p details=true`), a text becomes
    `{"inputs": …, "parameters": …}`; the answer does not repeat the prompt unless `-p return_full_text=true` is given.
    A prompt that is a JSON object is sent unchanged.

    A model with its own code reads other types too: give one with --content-type.
    """
    given = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    inputs = request_body(
        given, parameters, is_streamed=is_streamed, content_type=content_type, is_completion=is_completion
    )
    is_text = inputs != given
    more = {"TargetVariant": target_variant} if target_variant else {}
    if accept is not None:
        more["Accept"] = accept
    platform = find_platform(url)
    with translate_errors(), explained_errors(platform, name, target_variant):
        with watching(name, partial(_stage, platform, name)):
            models = _models(platform, name, target_variant) if is_text else []
        _say_base(name, models, is_asked=is_completion or raw)
        body = openai_body(given, parameters, models, is_streamed=is_streamed, is_completion=is_completion)
        request = {"EndpointName": name, "Body": inputs, "ContentType": content_type or "application/json", **more}
        client = platform.client("sagemaker-runtime", read_timeout_s=_READ_TIMEOUT_S)
        operation = client.invoke_endpoint_with_response_stream if is_streamed else client.invoke_endpoint
        call = partial(_call, platform, operation)
        rest = None if body is None else without_maximum(body, parameters)
        with watching(name, partial(_stage, platform, name)):
            response = call(request) if body is None else _call_within(call, request, body, rest)
        parts = _parts(response["Body"], is_streamed=is_streamed)
        if raw or content_type is not None:
            _write_bytes(parts)
            return
        text, finish_reason = _write_stream(parts) if is_streamed else _write_whole(b"".join(parts))
    note = ending_note(finish_reason, body, has_text=bool(text.strip()))
    if note is not None:
        click.echo(note, err=True)


def _say_base(name: str, models: Sequence[Mapping[str, Any]], *, is_asked: bool) -> None:
    """Say that a text is continued, if the caller has not asked for that."""
    if not is_asked and any(model.get("has_chat_template") is False for model in models):
        click.echo(f"{name} {CONTINUES_TEXT}", err=True)


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
    """Return the models that the server of an endpoint or component lists."""
    from botocore.exceptions import ClientError

    headers = {"X-Amzn-SageMaker-Target-Variant": variant} if variant else {}
    models = platform.list_models(name, headers, timeout_s=_READ_TIMEOUT_S)
    if not models:
        with suppress(ClientError):  # the request itself reports what is wrong with the name
            component = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
            target = f"{component['EndpointName']}/inference-components/{name}"
            models = platform.list_models(target, headers, timeout_s=_READ_TIMEOUT_S)
    return models


def _call_within(
    call: Callable[[dict[str, Any]], dict[str, Any]],
    request: dict[str, Any],
    body: dict[str, Any],
    rest: dict[str, Any] | None,
) -> dict[str, Any]:
    """Send `body`; if its maximum of tokens is more than the context has left, `rest`, whose answer may fill it."""
    from botocore.exceptions import ClientError

    try:
        return call({**request, "Body": json.dumps(body)})
    except ClientError as error:
        if rest is None or CONTEXT_EXCEEDED not in str(error.response.get("OriginalMessage")):
            raise
    return call({**request, "Body": json.dumps(rest)})


def _call(platform: Platform, call: Callable[..., dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """Invoke the endpoint, or the component of that name if there is no endpoint or it only hosts components."""
    from botocore.exceptions import ClientError

    try:
        return call(**request)
    except ClientError as error:
        if error_of(error)[0] != "ValidationError":
            raise
        name = request["EndpointName"]
        try:
            component = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
        except ClientError:
            raise error from None
    return call(**{**request, "EndpointName": component["EndpointName"], "InferenceComponentName": name})


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


def _write_bytes(parts: Iterable[bytes]) -> None:
    for part in parts:
        sys.stdout.buffer.write(part)
        sys.stdout.flush()
