"""`--url` and `bench` against the real server app, with an echo for an engine."""

import asyncio
import json

import pytest

from headrace.core.errors import Busy, InvalidRequest, Unavailable, UserError
from headrace.core.generation import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Grammar,
    RepetitionDetection,
    SamplingParams,
)
from headrace.tools.cli.remote import RemoteSource, request_parts
from tests.serving.server.conftest import serving as serving_echo
from tests.tools.bench.scripted_server import Connection, openai_models, serving
from tests.waiting import WAIT_S


def request(prompt="one two three", **sampling) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt=prompt, sampling=SamplingParams(**sampling))


async def answer(url: str, request: GenerationRequest, **options) -> tuple[str, object]:
    source = RemoteSource(url, **options)
    try:
        await source.start()
        chunks = [chunk async for chunk in source.generate(request)]
    finally:
        await source.close(deadline_s=0)
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    return "".join(chunk.text for chunk in chunks), chunks[-1].finish


@pytest.fixture(scope="module")
def echo():
    with serving_echo() as served:
        yield served


async def test_a_text_is_continued_by_the_server(echo) -> None:
    text, finish = await answer(echo.url, request())
    assert text == "one two three"
    assert (finish.reason, finish.prompt_tokens, finish.output_tokens) == (FinishReason.EOS, 3, 4)


async def test_a_chat_is_answered_by_the_server(echo) -> None:
    prompt = ChatPrompt(messages=({"role": "user", "content": "hello you"},))
    text, finish = await answer(echo.url, request(prompt, max_new_tokens=1))
    assert text == "hello"
    assert finish.reason is FinishReason.LENGTH


async def test_a_refusal_carries_the_message_of_the_server(echo) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        await answer(echo.url, request(temperature=-1.0))


async def test_a_model_that_is_not_served_is_refused(echo) -> None:
    with pytest.raises(UserError, match="echo"):
        await answer(echo.url, request(), model="other")


async def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match="No server answers"):
        await answer("http://127.0.0.1:9", request())


async def test_an_abandoned_answer_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def endless(connection: Connection, _: dict) -> None:
        connection.start_stream()
        try:
            while True:
                connection.piece('data: {"choices": [{"text": "la"}]}\n\n')
                await connection.writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            closed.set()

    async with serving({"/v1/models": openai_models, "/v1/completions": endless}) as server:
        source = RemoteSource(server.url)
        await source.start()
        chunks = source.generate(request())
        await anext(chunks)
        await chunks.aclose()
        await asyncio.wait_for(closed.wait(), WAIT_S)
        await source.close(deadline_s=0)


async def test_a_full_queue_has_a_retry_time() -> None:
    async def full(connection: Connection, _: dict) -> None:
        body = '{"error": {"message": "The queue is full."}}'
        head = f"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.write(head + body)

    async with serving({"/v1/models": openai_models, "/v1/completions": full}) as server:
        with pytest.raises(Busy, match="The queue is full") as caught:
            await answer(server.url, request())
    assert caught.value.retry_after_s == 3.0


async def test_reasoning_of_a_server_comes_between_tags() -> None:
    async def reasons(connection: Connection, _: dict) -> None:
        connection.start_stream()
        for delta in ({"reasoning": "Let "}, {"reasoning_content": "me."}, {"content": "Pa"}, {"content": "ris"}):
            connection.piece(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n")
        connection.piece("data: [DONE]\n\n")
        connection.end_stream()

    prompt = ChatPrompt(messages=({"role": "user", "content": "hello"},))
    async with serving({"/v1/models": openai_models, "/v1/chat/completions": reasons}) as server:
        text, _ = await answer(server.url, request(prompt))
    assert text == "<think>Let me.</think>Paris"


async def test_several_answers_have_an_end_and_counts_each(echo) -> None:
    source = RemoteSource(echo.url)
    await source.start()
    before = len(echo.backend.requests)
    chunks = [chunk async for chunk in source.generate(request(n=2, seed=5, temperature=1.0))]
    await source.close(deadline_s=0)
    for index in range(2):
        (finish,) = [chunk.finish for chunk in chunks if chunk.index == index and chunk.finish is not None]
        assert finish.output_tokens == 4
    assert sorted(sent.sampling.seed for sent in echo.backend.requests[before:]) == [5, 6]


async def test_a_maximum_above_the_rest_of_the_context_is_not_sent(echo) -> None:
    prompt = ChatPrompt(messages=({"role": "user", "content": "hello"},))
    text, finish = await answer(echo.url, request(prompt, max_new_tokens=1_000_000))
    assert (text, finish.reason) == ("hello", FinishReason.EOS)


async def test_an_answer_that_repeated_itself_says_so() -> None:
    async def repeats(connection: Connection, body: dict) -> None:
        asked.append(body)
        connection.start_stream()
        choice = {"text": "la la", "finish_reason": "stop", "stop_reason": "repetition_detected"}
        connection.piece(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")
        connection.end_stream()

    asked: list[dict] = []
    async with serving({"/v1/models": openai_models, "/v1/completions": repeats}) as server:
        _, finish = await answer(server.url, request(repetition_detection=RepetitionDetection()))
    assert finish.reason is FinishReason.REPETITION
    assert "repetition_detection" not in asked[0]  # this server does not say that it is Headrace's or vLLM's


@pytest.mark.parametrize("option", [{"best_of": 2}, {"logprobs": 0}, {"prompt_logprobs": 1}])
def test_what_the_answer_of_a_server_lacks_is_refused(option: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match=f"`{next(iter(option))}` is .; expected it unset for a server"):
        request_parts(request(**option), "m")


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (
            Grammar("json_schema", '{"type": "object"}'),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
        (Grammar("json_object"), {"response_format": {"type": "json_object"}}),
        (Grammar("regex", "a+"), {"structured_outputs": {"regex": "a+"}}),
        (Grammar("lark", 'start: "a"'), {"structured_outputs": {"grammar": 'start: "a"'}}),
    ],
)
def test_constraints_are_sent(grammar: Grammar, expected: dict[str, object]) -> None:
    _, body = request_parts(request(grammar=grammar), "m")
    assert expected.items() <= body.items()


def test_a_constraint_that_a_server_may_ignore_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="neither Headrace nor vLLM"):
        request_parts(request(grammar=Grammar("regex", "a+")), "m", is_extended=False)


def test_a_setting_of_an_engine_is_refused_for_a_server(headrace) -> None:
    result = headrace("generate", "--url", "http://127.0.0.1:9", "-p", "x", "--dtype", "w8a8")
    assert result.exit_code == 2
    assert "--dtype is for a model in this process" in result.stderr


def test_the_recommended_sampling_of_a_server_is_used(headrace, echo) -> None:
    headrace("chat", "--url", echo.url, stdin="hello\n")
    assert echo.backend.requests[-1].sampling.temperature == echo.backend.info.recommended.temperature
    assert echo.backend.requests[-1].sampling.repetition_detection == RepetitionDetection()


def test_only_what_differs_from_the_default_is_sent() -> None:
    path, body = request_parts(request(max_new_tokens=5, top_k=3, stop=("x",)), "m")
    assert path == "/v1/completions"
    assert body.keys() == {"model", "prompt", "stream", "stream_options", "temperature", "max_tokens", "top_k", "stop"}


def test_chat_with_a_server(headrace, echo) -> None:
    result = headrace("chat", "--url", echo.url, stdin="hello there\n/stats\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "hello there\n"
    assert "1 answer, 3 tokens" in result.stderr


def test_generate_with_a_server(headrace, echo) -> None:
    assert headrace("generate", "--url", echo.url, "-p", "one two").stdout == "one two\n"


@pytest.mark.parametrize("api", ["openai-completions", "openai-chat", "tgi", "sagemaker"])
def test_bench_measures_every_dialect_of_our_server(headrace, echo, tmp_path, api: str) -> None:
    output = tmp_path / "result.json"
    flags = f"-c 2 --requests 6 --prompt-tokens 20 --output-tokens 9 --warmup 1 --json --api {api} --seed 5"
    result = headrace("bench", echo.url, *flags.split(), "--output", output)
    assert result.exit_code == 0, result.stderr
    value = json.loads(result.stdout.splitlines()[-1])
    assert value == json.loads(output.read_text())
    (level,) = value["levels"]
    assert level["num_succeeded"] == 6
    assert level["output_tokens"] == 54
    assert level["tokens_counted_by"] == "server usage"
    assert "6 of 6" in result.stdout


def test_bench_sends_the_prompts_of_a_file(headrace, echo, tmp_path) -> None:
    questions = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"say {word}"}]} for word in ("one", "two")]
    questions.write_text("\n".join(map(json.dumps, rows)))
    num_before = len(echo.backend.requests)
    result = headrace("bench", echo.url, "--dataset", questions, "--requests", 4, "--warmup", 0)
    assert result.exit_code == 0, result.stderr
    assert "(openai-chat)" in result.stdout
    prompts = [sent.prompt.messages[0]["content"] for sent in echo.backend.requests[num_before + 2 :]]
    assert sorted(prompts) == ["say one", "say one", "say two", "say two"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("-c", "0"), "--concurrency"),
        (("-c", "1,x"), "--concurrency"),
        (("--rate", "-1"), "--rate"),
        (("--rate", "1", "-c", "1"), "not both"),
        (("--prompt-tokens", "many"), "length"),
        (("--slo", "speed:1"), "objective"),
    ],
)
def test_an_invalid_load_is_one_sentence(headrace, flags, word: str) -> None:
    result = headrace("bench", "http://127.0.0.1:9", *flags)
    assert result.exit_code == 2
    assert word in result.stderr


def test_bench_of_an_unreachable_server_is_exit_code_1(headrace) -> None:
    result = headrace("bench", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "No server answers" in result.stderr
