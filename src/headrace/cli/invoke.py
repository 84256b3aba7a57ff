"""`headrace invoke`: send a request to an endpoint with boto3."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from headrace.cli.answer_text import AnswerText, text_of_value
from headrace.cli.group import Examples, Failed, UserFailed
from headrace.cli.platform_client import Platform, error_of, find_platform, platform_option, translate_errors
from headrace.cli.terminal import write_text

_READ_TIMEOUT_S = 600.0

EXAMPLES = """
headrace invoke smollm2 "The sea is"                          print the text of the answer
headrace invoke smollm2 --stream "The sea is" -p max_new_tokens=100
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
    raw: bool,
    content_type: str | None,
    accept: str | None,
    target_variant: str | None,
) -> None:
    """
    Send PROMPT to the endpoint or inference component NAME and print its answer; `-` reads it from standard input.

    A prompt that is a JSON object is sent unchanged; any other text becomes `{"inputs": …, "parameters": …}`, which TGI
    and LMI images understand. The answer does not repeat the prompt unless `-p return_full_text=true` is given.

    A model with its own code reads other types too: give one with --content-type.
    """
    given = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    body = request_body(given, parameters, is_streamed=is_streamed, content_type=content_type)
    raw = raw or content_type is not None
    more = {"TargetVariant": target_variant} if target_variant else {}
    if accept is not None:
        more["Accept"] = accept
    platform = find_platform(url)
    request = {"EndpointName": name, "Body": body, "ContentType": content_type or "application/json", **more}
    with translate_errors():
        client = platform.client("sagemaker-runtime", read_timeout_s=_READ_TIMEOUT_S)
        call = client.invoke_endpoint_with_response_stream if is_streamed else client.invoke_endpoint
        response = _call(platform, call, request)
        if is_streamed:
            _print_stream(response, raw=raw)
        else:
            _print_whole(response, raw=raw)


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


def _parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON if it parses as JSON, else a string."""
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise UserFailed(f"--parameter is {text!r}; expected NAME=VALUE.")
    try:
        return name, json.loads(raw)
    except ValueError:
        return name, raw


def _print_whole(response: dict[str, Any], *, raw: bool) -> None:
    body: bytes = response["Body"].read()
    if raw:
        _write_bytes(body)
        return
    try:
        text = text_of_value(json.loads(body))
    except ValueError:
        reader = AnswerText()
        text = reader.feed(body) + reader.finish()
    write_text((body.decode("utf-8", "replace") if text is None else text).rstrip("\n") + "\n")


def _print_stream(response: dict[str, Any], *, raw: bool) -> None:
    from botocore.exceptions import EventStreamError

    reader = AnswerText()
    try:
        for event in response["Body"]:
            part = event.get("PayloadPart", {}).get("Bytes", b"")
            if raw:
                _write_bytes(part)
            else:
                write_text(reader.feed(part))
    except EventStreamError as error:
        raise Failed(f"The response stream ended with an error: {error_of(error)[1]}") from error
    finally:
        response["Body"].close()
    if not raw:
        write_text(reader.finish().rstrip("\n") + "\n")


def _write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
