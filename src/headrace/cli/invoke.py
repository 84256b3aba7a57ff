"""`headrace invoke`: send a request to an endpoint with boto3."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from headrace.cli.answer_text import AnswerText, text_of_value
from headrace.cli.group import Examples, Failed, UserFailed
from headrace.cli.platform_client import Platform, error_of, find_platform, platform_option, translate_errors
from headrace.cli.terminal import write_text

_READ_TIMEOUT_S = 600.0
_CHAT_DEFAULTS = {"max_tokens": 512, "temperature": 0}
"""Greedy, as `inputs` are decoded by default; OpenAI's default temperature is 1."""
_CHAT_NAMES = {"max_new_tokens": "max_tokens"}

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

    A text becomes a user message, `{"messages": […], "max_tokens": 512, "temperature": 0}`, if the endpoint's server
    lists its model with a chat template. For other models, and with --completion, it becomes
    `{"inputs": …, "parameters": …}`, which TGI and LMI images understand; the answer does not repeat the prompt unless
    `-p return_full_text=true` is given. A prompt that is a JSON object is sent unchanged.

    A model with its own code reads other types too: give one with --content-type.
    """
    given = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    completion = request_body(given, parameters, is_streamed=is_streamed, content_type=content_type)
    is_text = completion != given
    raw = raw or content_type is not None
    more = {"TargetVariant": target_variant} if target_variant else {}
    if accept is not None:
        more["Accept"] = accept
    platform = find_platform(url)
    with translate_errors():
        is_chat = is_text and not is_completion and _answers_chats(platform, name, target_variant)
        body = chat_body(given, parameters, is_streamed=is_streamed) if is_chat else completion
        request = {"EndpointName": name, "Body": body, "ContentType": content_type or "application/json", **more}
        client = platform.client("sagemaker-runtime", read_timeout_s=_READ_TIMEOUT_S)
        call = client.invoke_endpoint_with_response_stream if is_streamed else client.invoke_endpoint
        response = _call(platform, call, request)
        text = (_print_stream if is_streamed else _print_whole)(response, raw=raw)
    if text is not None and not text.strip():
        click.echo(_why_empty(is_chat=is_chat), err=True)


def _why_empty(*, is_chat: bool) -> str:
    if is_chat:
        return "The answer has no text: the model ended it at once, or within its reasoning. Raise -p max_tokens=N."
    return "The answer has no text: the model ended it at once."


def _answers_chats(platform: Platform, name: str, variant: str | None) -> bool:
    """Return whether the server of an endpoint or component lists its model with a chat template."""
    from botocore.exceptions import ClientError

    headers = {"X-Amzn-SageMaker-Target-Variant": variant} if variant else {}
    models = platform.list_models(name, headers, timeout_s=_READ_TIMEOUT_S)
    if not models:
        with suppress(ClientError):  # the request itself reports what is wrong with the name
            component = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
            target = f"{component['EndpointName']}/inference-components/{name}"
            models = platform.list_models(target, headers, timeout_s=_READ_TIMEOUT_S)
    return any(model.get("has_chat_template") is True for model in models)


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


def request_body(
    given: bytes, parameters: tuple[str, ...], *, is_streamed: bool, content_type: str | None = None
) -> bytes:
    """Return a JSON object or what has a type unchanged, and any other text as `inputs`."""
    if content_type is not None:
        if parameters:
            raise UserFailed("--parameter cannot be combined with --content-type, which sends PROMPT unchanged.")
        return given
    text = given.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        if parameters:
            raise UserFailed("--parameter cannot be combined with a JSON prompt. Put the parameter into the JSON.")
        return text.encode()
    values = dict(_parameter(parameter) for parameter in parameters)
    body: dict[str, Any] = {"inputs": text, "parameters": {"return_full_text": False, **values}}
    if is_streamed:
        body["stream"] = True
    return json.dumps(body).encode()


def chat_body(given: bytes, parameters: tuple[str, ...], *, is_streamed: bool) -> bytes:
    """Return a chat of one user message; `max_new_tokens` becomes the chat's `max_tokens`."""
    values = {_CHAT_NAMES.get(name, name): value for name, value in map(_parameter, parameters)}
    messages = [{"role": "user", "content": given.decode("utf-8", "replace")}]
    body = {"messages": messages, **_CHAT_DEFAULTS, **values}
    return json.dumps({**body, "stream": True} if is_streamed else body).encode()


def _parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON if it parses as JSON, else a string."""
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise UserFailed(f"--parameter is {text!r}; expected NAME=VALUE.")
    try:
        return name, json.loads(raw)
    except ValueError:
        return name, raw


def _print_whole(response: dict[str, Any], *, raw: bool) -> str | None:
    """Print the answer; return its text, or None for bytes."""
    body: bytes = response["Body"].read()
    if raw:
        _write_bytes(body)
        return None
    try:
        text = text_of_value(json.loads(body))
    except ValueError:
        reader = AnswerText()
        text = reader.feed(body) + reader.finish()
    text = body.decode("utf-8", "replace") if text is None else text
    write_text(text.rstrip("\n") + "\n")
    return text


def _print_stream(response: dict[str, Any], *, raw: bool) -> str | None:
    """Print the answer as it comes; return its text, or None for bytes."""
    from botocore.exceptions import EventStreamError

    reader, texts = AnswerText(), []
    try:
        for event in response["Body"]:
            part = event.get("PayloadPart", {}).get("Bytes", b"")
            if raw:
                _write_bytes(part)
            else:
                texts.append(reader.feed(part))
                write_text(texts[-1])
    except EventStreamError as error:
        raise Failed(f"The response stream ended with an error: {error_of(error)[1]}") from error
    finally:
        response["Body"].close()
    if raw:
        return None
    texts.append(reader.finish())
    write_text(texts[-1].rstrip("\n") + "\n")
    return "".join(texts)


def _write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
