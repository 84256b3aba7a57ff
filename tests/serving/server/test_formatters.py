"""Formatters of a `model.py` around an engine: real processes of the code, and an echo in place of the model."""

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from headrace.core.errors import CodeFailed
from headrace.core.telemetry import RequestRecord
from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.errors import LoadError
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.spec import RestartPolicy
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, url_of
from headrace.serving.server.app import app_of
from headrace.serving.server.formatters import FormattedGeneration, FormattedResponse, Formatters
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.lmi.dialect import Lmi
from headrace.testing.echo import EchoBackend, EchoScript
from tests.serving.handlers.support import until
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESPONSES = """
    import json, os, time
    from djl_python.input_parser import input_formatter
    from djl_python.output_formatter import output_formatter

    @input_formatter
    def read(decoded_payload, tokenizer=None, **kwargs):
        if "exit" in decoded_payload:
            os._exit(3)
        if "hang" in decoded_payload:
            time.sleep(600)
        if "text" in decoded_payload:
            return {**decoded_payload.pop("more", {}), "inputs": decoded_payload["text"].upper()}
        return decoded_payload

    @output_formatter
    def write(output):
        if isinstance(output, str):
            if output.strip() == "data: [DONE]":
                return "done"
            event = json.loads(output[6:])
            choices = event["choices"]
            if choices and "boom" in str(choices):
                raise ValueError("boom")
            return {"part": choices[0].get("text", choices[0].get("delta", {}).get("content"))} if choices else "usage"
        if "boom" in output.choices[0].get("text", ""):
            raise ValueError("boom")
        output.owner = output.model
        return output
"""

TOKENS = """
    import json, os
    from djl_python import Input
    from djl_python.encode_decode import decode
    from djl_python.input_parser import input_formatter
    from djl_python.output_formatter import output_formatter
    from djl_python.request_io import RequestOutput, TextInput

    class Traced(TextInput):
        trace: str = ""

    @input_formatter
    def read(input_item: Input, **kwargs) -> Traced:
        payload = decode(input_item, input_item.get_property("Content-Type"))
        request = Traced(input_text=payload.pop("prompt"), parameters=payload)
        request.trace = input_item.get_property("X-Trace")
        return request

    @output_formatter
    def write(request_output: RequestOutput) -> str:
        sequence = request_output.sequences[request_output.best_sequence_index]
        token, index, first, last = sequence.get_next_token()
        if "boom" in token.text:
            os._exit(3)
        end = f"/{sequence.finish_reason} {request_output.input.trace}" if last else ""
        return f"{index}:{token.text.strip()} {token.log_prob is not None}{end}\\n"
"""


@dataclass
class Scene:
    client: httpx.AsyncClient
    backend: EchoBackend
    formatters: Formatters

    async def post(self, body: Any, path: str = "/invocations", **kwargs: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **kwargs)


@asynccontextmanager
async def scene(folder: Path, code: str, *, dialect: str = "lmi-17", **spec: Any) -> AsyncIterator[Scene]:
    """Serve an echo with the formatters of a `model.py`."""
    (folder / "model.py").write_text(dedent(code))
    made = make_spec(find_model(folder, model_name="m", env={}))
    formatters = Formatters(replace(made, environment={"PATH": "/usr/bin:/bin"}, max_workers=1, **spec))
    await formatters.start()
    backend = EchoBackend(max_model_len=5000)
    settings = ServerSettings(model="echo", dialect=dialect)
    app = app_of(Service(settings, backend, formatters=formatters))
    server = http_server(app, limits=http_limits(settings))
    with bind("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url_of(listener), timeout=WAIT_S) as client:
                yield Scene(client, backend, formatters)
        finally:
            server.stop(grace_s=1)
            await task
            await formatters.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def responses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(tmp_path_factory.mktemp("responses"), RESPONSES) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tokens(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(tmp_path_factory.mktemp("tokens"), TOKENS, dialect="lmi-0.27") as made:
        yield made


async def test_the_engine_gets_the_formatted_request_and_the_client_the_formatted_response(responses: Scene) -> None:
    response = await responses.post({"text": "one two", "more": {"parameters": {"max_new_tokens": 2}}})

    assert response.headers["content-type"] == "application/json"
    assert response.text.endswith("\n")
    assert response.json()["choices"][0] == {"index": 0, "text": "ONE TWO", "logprobs": None, "finish_reason": "length"}
    assert response.json()["owner"] == "echo"


async def test_each_event_of_a_stream_is_formatted_and_is_a_chunk(responses: Scene) -> None:
    async with responses.client.stream(
        "POST", "/invocations", json={"text": "one two", "more": {"parameters": {"max_new_tokens": 2}, "stream": True}}
    ) as response:
        chunks = [chunk async for chunk in response.aiter_raw()]

    assert response.headers["content-type"] == "application/jsonlines"
    assert b"".join(chunks) == b'{"part": "ONE"}\n{"part": " TWO"}\nusage\ndone\n\n'
    assert len(chunks) > 1


async def test_a_chat_is_formatted_on_every_route(responses: Scene) -> None:
    chat = {"messages": [{"role": "user", "content": "one two"}], "stream": True, "max_tokens": 1}

    bodies = [(await responses.post(chat, path)).text for path in ("/invocations", "/v1/chat/completions")]

    assert bodies[0].splitlines()[-2:] == ["done", ""]
    assert '{"part": "one"}' in bodies[0]
    assert bodies[0] == bodies[1]


async def test_tokens_come_to_the_formatter_one_by_one_with_the_object_that_the_input_formatter_made(
    tokens: Scene,
) -> None:
    body = {"prompt": "one two three", "max_new_tokens": 2}

    whole = await tokens.post(body, headers={"x-trace": "t"})
    streamed = await tokens.post({**body, "stream": True}, headers={"x-trace": "t"})

    assert whole.text == streamed.text == "0:one True\n1:two True/length t\n"
    assert whole.headers["content-type"] == "application/json"


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt": ["one", "two"]}])
async def test_a_formatter_of_tokens_takes_one_sequence(tokens: Scene, more: dict[str, Any]) -> None:
    response = await tokens.post({"prompt": "one two", **more})

    assert response.status_code == 424
    assert "takes one sequence" in response.json()["error"]


async def test_vectors_have_no_tokens_to_format(tokens: Scene) -> None:
    response = await tokens.post({"prompt": "one"}, "/embed")

    assert response.status_code == 200
    assert isinstance(response.json()[0][0], float)


async def test_a_request_that_only_loads_the_model_has_no_answer_to_format(responses: Scene) -> None:
    response = await responses.post({"model": "echo", "stream": False}, "/api/generate")

    assert (response.status_code, response.json()["done_reason"]) == (200, "load")


async def test_requests_at_once_keep_their_tokens_apart(tokens: Scene) -> None:
    texts = [f"a{number} b{number} c{number}" for number in range(12)]

    # Clients choose request ids, so these do not tell requests apart.
    answers = await asyncio.gather(
        *(
            tokens.post({"prompt": text, "max_new_tokens": 3, "stream": True}, headers={"x-request-id": "same"})
            for text in texts
        )
    )

    for text, response in zip(texts, answers, strict=True):
        assert [line.split()[0].partition(":")[2] for line in response.text.splitlines()] == text.split()


async def test_errors_of_the_input_formatter_are_told_in_the_dialect_of_the_route(
    responses: Scene, tokens: Scene
) -> None:
    lmi = await responses.post({"text": 5})
    rolling = await tokens.post({})
    openai = await responses.post({"text": 5}, "/v1/completions")

    text = "Custom formatter failed: Custom input formatter execution failed: AttributeError: 'int' object has no attr"
    assert (lmi.status_code, lmi.json()["code"]) == (424, 424)
    assert lmi.json()["error"].startswith(text)
    assert rolling.status_code == 424
    assert rolling.json()["error"] == (
        "Input Parsing failed. Ensure that the request payload is valid. Invalid Request Property: 'prompt'"
    )
    assert openai.status_code == 424
    assert openai.json()["error"]["message"].startswith(text)


async def test_an_output_formatter_that_fails_is_an_error_before_and_in_a_stream(responses: Scene) -> None:
    whole = await responses.post({"inputs": "boom"})
    at_once = await responses.post({"inputs": "boom", "stream": True})
    later = await responses.post({"inputs": "one boom two", "stream": True})

    text = "Custom formatter failed: Custom output formatter execution failed: ValueError: boom"
    assert [(each.status_code, each.json()["error"]) for each in (whole, at_once)] == [(424, text)] * 2
    assert later.status_code == 200
    first, error, *_ = [line for line in later.text.splitlines() if line]
    assert json.loads(first) == {"part": "one"}
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == text
    await until(lambda: not responses.backend.stats().num_running)


async def test_a_process_that_ends_costs_the_requests_that_it_has(responses: Scene) -> None:
    lost = await responses.post({"exit": 1})
    after = await responses.post({"inputs": "one"})

    assert (lost.status_code, lost.json()) == (
        503,
        {"code": 503, "type": "WlmException", "message": "Python worker disconnected."},
    )
    assert after.status_code == 200
    assert (await responses.client.get("/ping")).status_code == 200
    metrics = (await responses.client.get("/metrics")).text
    assert 'headrace_handler_restarts_total{model="m"} 1.0' in metrics
    assert "headrace_output_tokens_total" in metrics


async def test_a_process_that_ends_in_a_stream_is_an_error_in_the_stream(tokens: Scene) -> None:
    response = await tokens.post({"prompt": "one boom two three", "max_new_tokens": 4, "stream": True})

    first, error = response.text.splitlines()
    assert first == "0:one True"
    assert json.loads(error)["token"]["error_msg"] == "Python worker disconnected."
    await until(lambda: not tokens.backend.stats().num_running)
    assert (await tokens.post({"prompt": "one", "max_new_tokens": 1})).text.startswith("0:one")


async def test_a_stream_whose_process_was_replaced_between_two_tokens_is_not_continued(tokens: Scene) -> None:
    body = {"prompt": "word " * 400, "max_new_tokens": 400, "stream": True}
    tokens.backend.script = EchoScript(delay_s=0.01)
    try:
        async with tokens.client.stream("POST", "/invocations", json=body) as response:
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("0:word")
            child = tokens.formatters.pool.workers[0].child
            assert child is not None
            os.kill(child.pid, signal.SIGKILL)
            last = [line async for line in lines][-1]
    finally:
        tokens.backend.script = EchoScript()

    # The token that meets the end is lost with the process; any other one is refused by the next process.
    assert any(text in last for text in ("Python worker disconnected", "started again in the middle", "No worker"))


async def test_a_client_that_leaves_ends_the_generation(tokens: Scene) -> None:
    tokens.backend.script = EchoScript(delay_s=0.01)
    tokens.backend.aborted.clear()
    body = {"prompt": "word " * 400, "max_new_tokens": 400, "stream": True}
    try:
        async with tokens.client.stream("POST", "/invocations", json=body) as response:
            await anext(response.aiter_lines())
        await until(lambda: bool(tokens.backend.aborted))
    finally:
        tokens.backend.script = EchoScript()


async def test_a_formatter_that_hangs_is_replaced_and_then_given_up(tmp_path: Path) -> None:
    async with scene(tmp_path, RESPONSES, call_timeout_s=0.3, restart=RestartPolicy(max_failures=0)) as hung:
        late = await hung.post({"hang": 1})
        await until(lambda: not hung.formatters.is_healthy)
        after = await hung.post({"inputs": "one"})
        ping = await hung.client.get("/ping")

    assert (late.status_code, late.json()["type"]) == (503, "WlmException")
    assert late.json()["message"] == "java.util.concurrent.TimeoutException"
    assert (after.status_code, ping.status_code) == (503, 503)


async def test_code_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import no_such_module")
    spec = make_spec(find_model(tmp_path, model_name="m", env={}))

    with pytest.raises(LoadError, match=r"model\.py cannot be imported: .*no_such_module.* \(model\.py, line 1\)"):
        await Formatters(replace(spec, environment={"PATH": "/usr/bin:/bin"})).start()


class _Response:
    """Formatters that count their calls."""

    def __init__(self) -> None:
        self.changes_input, self.output, self.num_calls = False, "token", 0

    async def format(self, part: str, content: bytes) -> bytes:
        self.num_calls += 1
        if b"bad" in content:
            raise CodeFailed("bad")
        return b"token\n"


async def test_no_token_is_formatted_while_the_client_does_not_read() -> None:
    response, backend = _Response(), EchoBackend(max_model_len=5000)
    sent: deque[dict[str, Any]] = deque()
    is_full, has_room = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            is_full.set()
            await has_room.wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "headers": [], "path": "/invocations"}
    record = RequestRecord(request_id="r", route="/invocations", dialect="lmi", started_s=0.0)
    generation = FormattedGeneration(
        Service(ServerSettings(model="echo", dialect="lmi-0.27"), backend),
        Lmi(version="0.27"),
        Exchange(cast("Any", scope), receive, send),
        record,
        cast("FormattedResponse", response),
    )
    body = json.dumps({"inputs": "word " * 300, "parameters": {"max_new_tokens": 300}, "stream": True}).encode()
    parsed = await generation.parse(body, None, adapter=None)
    running = asyncio.create_task(generation.run(backend, parsed))
    await is_full.wait()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert response.num_calls < 5
    has_room.set()
    await running
    assert response.num_calls == 300
