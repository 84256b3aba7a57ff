import json
from functools import partial

import pytest

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.errors import Busy
from headrace.core.generation import ChatPrompt, Finish, FinishReason, Grammar, RepetitionDetection
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.tools.cli.answers import ending_note


def test_the_text_goes_to_stdout_and_nothing_else(headrace) -> None:
    result = headrace("generate", "echo", "-p", "one two three")
    assert result.exit_code == 0
    assert result.stdout == "one two three\n"


def test_an_empty_answer_is_explained(headrace) -> None:
    result = headrace("generate", "echo", "-p", "one two", "--stop", "one")
    assert result.stdout == "\n"
    assert "has no text: it began with a stop text." in result.stderr
    assert "--completion" not in result.stderr
    raw = headrace("generate", "echo", "-p", "one two", "--stop", "one", "--completion")
    assert "trained for chats: try without --completion" in raw.stderr


def test_an_answer_that_is_cut_says_so_and_with_which_option(headrace) -> None:
    assert "was cut at 2 tokens. Raise -" in headrace("generate", "echo", "-p", "one two three", "-n", 2).stderr
    several = headrace("generate", "echo", "-p", "one two three", "-n", 2, "--num-answers", 2).stderr
    assert "Answer 2 was cut at 2 tokens" in several
    assert headrace("generate", "echo", "-p", "one two three").stderr == ""


def test_an_answer_ends_when_it_repeats_itself_unless_that_is_allowed(headrace) -> None:
    headrace("generate", "echo", "-p", "one")
    assert headrace.backend.requests[0].sampling.repetition_detection == RepetitionDetection()
    for option in ("--allow-repetition", "--ignore-eos"):
        headrace("generate", "echo", "-p", "one", option, "-n", 3)
        assert headrace.backend.requests[0].sampling.repetition_detection is None


@pytest.mark.parametrize(
    ("finish", "shown", "note"),
    [
        ({"reason": FinishReason.EOS}, {"has_text": True}, None),
        ({"reason": FinishReason.REPETITION}, {"has_text": True}, "stopped after 9 tokens, because it repeated itself"),
        ({"reason": FinishReason.LENGTH}, {"has_text": False}, "has no text: it was cut at 9 tokens"),
        ({"reason": FinishReason.STOP}, {"has_text": False}, "has no text: it began with a stop text."),
        ({"reason": FinishReason.EOS}, {"has_reasoning": True}, "within its reasoning, after 9 tokens."),
    ],
)
def test_a_note_says_why_an_answer_is_not_whole(
    finish: dict[str, FinishReason], shown: dict[str, bool], note: str | None
) -> None:
    end = Finish(prompt_tokens=1, output_tokens=9, **finish)
    found = ending_note(end, **{"has_text": False, "has_reasoning": False, **shown}, max_new_tokens=9)
    assert found == note or (note is not None and found is not None and note in found)


def test_the_prompt_is_a_message_unless_it_is_raw(headrace) -> None:
    headrace("generate", "echo", "-p", "Hi")
    chat = headrace.backend.requests[0].prompt
    assert isinstance(chat, ChatPrompt)
    assert [(message["role"], message["content"]) for message in chat.messages] == [("user", "Hi")]
    headrace("generate", "echo", "-p", "Hi", "--completion")
    assert headrace.backend.requests[0].prompt == "Hi"
    assert headrace("generate", "echo", "-p", "Hi", "--completion", "--chat").exit_code == 2


def test_a_model_without_a_chat_template_continues_the_prompt(headrace) -> None:
    headrace.kind = partial(EchoBackend, has_chat_template=False)
    headrace("generate", "echo", "-p", "Hi")
    assert headrace.backend.requests[0].prompt == "Hi"


@pytest.fixture
def reasoner(headrace):
    """Return a command line whose model reasons between tags."""
    headrace.kind = partial(EchoBackend, answer_format=REASONING_TAGS)
    return headrace


def test_reasoning_is_left_out_of_a_pipe(reasoner) -> None:
    result = reasoner("generate", "echo", "-p", "<think>two plus two</think> four")
    assert result.stdout == "four\n"
    assert reasoner.backend.requests[0].separates_reasoning


def test_an_answer_that_ends_within_its_reasoning_says_so(reasoner) -> None:
    result = reasoner("generate", "echo", "-p", "<think>two plus two </think> four", "-n", "3")
    assert result.stdout == "\n"
    assert "within its reasoning, after 3 tokens. Raise --max-new-tokens" in result.stderr


def test_reasoning_is_a_field_of_json_and_text_without_a_chat_has_none(reasoner) -> None:
    text = "<think>two plus two</think> four"
    value = json.loads(reasoner("generate", "echo", "-p", text, "--json").stdout)
    assert (value["reasoning"], value["text"]) == ("two plus two", "four")
    raw = json.loads(reasoner("generate", "echo", "-p", text, "--json", "--completion").stdout)
    assert raw["text"] == text
    assert "reasoning" not in raw


def test_chats_of_a_batch_have_their_reasoning_apart(reasoner) -> None:
    text = "<think>two plus two</think> four"
    lines = [{"messages": [{"role": "user", "content": text}]}, {"prompt": text}]
    result = reasoner("generate", "echo", "--input", "-", stdin="\n".join(map(json.dumps, lines)))
    chat, raw = map(json.loads, result.stdout.splitlines())
    assert (chat["reasoning"], chat["text"]) == ("two plus two", "four")
    assert raw["text"] == text


def test_a_dash_reads_the_prompt_from_stdin(headrace) -> None:
    assert headrace("generate", "echo", "-p", "-", stdin="from a pipe").stdout == "from a pipe\n"


def test_json_is_one_object_with_counts_and_times(headrace) -> None:
    result = headrace("generate", "echo", "-p", "one two", "--completion", "--json", "--logprobs", "2")
    value = json.loads(result.stdout)
    assert value["text"] == "one two"
    assert value["finish_reason"] == "eos_token"
    assert (value["prompt_tokens"], value["output_tokens"]) == (2, 3)
    assert value["tokens"][0]["text"] == "one"
    assert len(value["tokens"][0]["top"]) == 2
    assert value["ttft_s"] >= 0


def test_the_prompt_is_an_argument_or_an_option(headrace) -> None:
    ways = (["one two"], ["-"], ["-p", "one two"])
    assert len({headrace("generate", "echo", *words, stdin="one two").stdout for words in ways}) == 1
    assert "Give either one prompt" in headrace("generate", "echo", "one", "-p", "two").stderr
    for args, said in (
        (("http://127.0.0.1:1", "Hi"), "write --url http://127.0.0.1:1."),
        (("echo", "--input", "no.jsonl"), "--input is no.jsonl; expected a readable file"),
        (("echo", "Hi", "--json-schema", "no.json"), "--json-schema is no.json; expected a file that exists"),
    ):
        result = headrace("generate", *args)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert "which --input names" in headrace("generate", "echo", "one", "-o", "x").stderr


def test_several_answers_are_choices(headrace) -> None:
    value = json.loads(headrace("generate", "echo", "-p", "one two", "--json", "--num-answers", "2").stdout)
    assert [choice["text"] for choice in value["choices"]] == ["one two", " twoone"]
    shown = headrace("generate", "echo", "-p", "one two", "--num-answers", "2").stdout
    assert "--- 1\none two" in shown
    assert "--- 2\n twoone" in shown


def test_chat_makes_a_message_of_the_prompt(headrace) -> None:
    headrace("generate", "echo", "-p", "Hi", "--system", "Be brief.")
    (request,) = headrace.backend.requests
    assert isinstance(request.prompt, ChatPrompt)
    assert [message["role"] for message in request.prompt.messages] == ["system", "user"]


def test_every_sampling_option_reaches_the_engine(headrace) -> None:
    options = (
        "--max-new-tokens 7 --min-new-tokens 1 -t 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --typical-p 0.8 "
        "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3 --logit-bias 5=-1.5 --seed 9 "
        "--stop X --stop Y --stop-token-ids 11 --include-stop --ignore-eos --show-special-tokens "
        "--num-answers 2 --best-of 3 --logprobs 1 --prompt-logprobs 0 --regex [a-z]+"
    )
    result = headrace("generate", "echo", "-p", "one", *options.split())
    assert result.exit_code == 0, result.stderr
    sampling = headrace.backend.requests[0].sampling
    assert sampling.max_new_tokens == 7
    assert sampling.temperature == 0.5
    assert sampling.logit_bias == {5: -1.5}
    assert sampling.stop == ("X", "Y")
    assert sampling.stop_token_ids == (11,)
    assert not sampling.skip_special_tokens
    assert (sampling.include_stop, sampling.ignore_eos, sampling.seed) == (True, True, 9)
    assert (sampling.n, sampling.best_of, sampling.logprobs, sampling.prompt_logprobs) == (2, 3, 1, 0)
    assert sampling.grammar == Grammar("regex", "[a-z]+")


def test_a_schema_is_read_from_a_file(headrace, tmp_path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}')
    headrace("generate", "echo", "-p", "one", "--json-schema", path)
    assert headrace.backend.requests[0].sampling.grammar == Grammar("json_schema", '{"type": "integer"}')


def test_engine_options_and_environment_reach_the_engine(headrace) -> None:
    headrace(
        "generate", "echo", "-p", "one", "--dtype", "w8a8", "--kv-cache-bytes", "1GiB", env={"HEADRACE_THREADS": "1"}
    )
    (config,) = headrace.configs
    assert (config.model, config.dtype, config.kv_cache_bytes, config.threads) == ("echo", "w8a8", 2**30, 1)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("generate", "echo"), "prompt"),
        (("generate", "echo", "-p", "a", "--input", "b"), "either"),
        (("generate", "-p", "a"), "Name a model"),
        (("generate", "echo", "-p", ""), "empty"),
        (("generate", "echo", "-p", "a", "--dtype", "w8a9"), "Did you mean w8a8"),
        (("generate", "echo", "-p", "a", "--logit-bias", "x"), "--logit-bias"),
        (("generate", "echo", "-p", "a", "--json-object", "--regex", "b"), "Only one"),
        (("generate", "echo", "--completion", "-p", "a" + " a" * 699), "700 tokens"),
    ],
)
def test_invalid_options_are_one_sentence_and_exit_code_2(headrace, args, word) -> None:
    result = headrace(*args)
    assert result.exit_code == 2
    assert word in result.stderr
    assert not result.stdout.strip()


def test_a_failure_during_an_answer_is_reported(headrace) -> None:
    headrace.script = EchoScript(fail_after_tokens=1)
    result = headrace("generate", "echo", "-p", "one two three")
    assert result.exit_code == 1
    assert "The echo broke" in result.stderr


def test_a_busy_server_is_exit_code_1(headrace) -> None:
    headrace.script = EchoScript(refusal=Busy("The queue is full."))
    assert headrace("generate", "echo", "-p", "one").exit_code == 1


@pytest.fixture
def batch(tmp_path):
    """Return an input of five lines, two of them invalid."""
    rows = [
        '{"id": "a", "prompt": "one two three four five six"}',
        "",
        '{"prompt": "two"}',
        "not json",
        '{"id": 7, "messages": [{"role": "user", "content": "three"}], "max_new_tokens": 1, "stop": ["x"]}',
        '{"id": "e", "prompt": "four", "max_tokenz": 1}',
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_batch_answers_in_the_order_of_its_input_and_goes_on_after_a_bad_line(headrace, batch, tmp_path) -> None:
    output = tmp_path / "out.jsonl"
    result = headrace("generate", "echo", "--input", batch, "--output", output)
    assert result.exit_code == 0, result.stderr
    rows = rows_of(output)
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row.get("id") for row in rows] == ["a", None, None, 7, "e"]
    assert rows[0]["text"] == "one two three four five six"
    assert rows[1]["text"] == "two"
    assert "not JSON" in rows[2]["error"]["message"]
    assert rows[3]["output_tokens"] == 1
    assert "max_tokenz" in rows[4]["error"]["message"]
    assert "5 prompts, 2 failed" in result.stderr


def test_a_batch_without_an_output_file_writes_to_stdout(headrace, batch) -> None:
    result = headrace("generate", "echo", "--input", "-", stdin=batch.read_text())
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1, 2, 3, 4]


def test_an_output_that_exists_is_not_overwritten_by_accident(headrace, batch, tmp_path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("precious\n")
    result = headrace("generate", "echo", "--input", batch, "--output", output)
    assert result.exit_code == 2
    assert "--resume" in result.stderr
    assert output.read_text() == "precious\n"
    assert headrace("generate", "echo", "--input", batch, "--output", output, "--overwrite").exit_code == 0
    assert len(rows_of(output)) == 5


@pytest.mark.parametrize("num_bytes_lost", [1, 10, 100, 300])
def test_an_interrupted_batch_resumes_and_ends_with_the_same_file(
    headrace, batch, tmp_path, num_bytes_lost: int
) -> None:
    output = tmp_path / "out.jsonl"
    headrace("generate", "echo", "--input", batch, "--output", output)
    whole = output.read_bytes()
    output.write_bytes(whole[:-num_bytes_lost])
    result = headrace("generate", "echo", "--input", batch, "--output", output, "--resume")
    assert result.exit_code == 0, result.stderr
    assert output.read_bytes() == whole
    assert len(headrace.backend.requests) < 3
    assert "done before" in result.stderr


def test_an_output_of_another_input_is_not_continued(headrace, batch, tmp_path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text('{"index": 0, "id": "z", "text": ""}\n')
    result = headrace("generate", "echo", "--input", batch, "--output", output, "--resume")
    assert result.exit_code == 2
    assert "another input" in result.stderr


def test_a_batch_runs_together(headrace, tmp_path) -> None:
    most = 0

    class Counting(EchoBackend):
        async def generate(self, request):
            nonlocal most
            async for chunk in super().generate(request):
                most = max(most, self.stats().num_running)
                yield chunk

    headrace.kind = Counting
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a b c d e f"}\n' * 40)
    headrace("generate", "echo", "--input", path)
    assert most == 40


def test_a_batch_waits_while_the_engine_is_busy(headrace, tmp_path) -> None:
    num_refused = 0

    class SometimesBusy(EchoBackend):
        async def generate(self, request):
            nonlocal num_refused
            if num_refused < 3:
                num_refused += 1
                raise Busy("The queue is full.", retry_after_s=0.0)
            async for chunk in super().generate(request):
                yield chunk

    headrace.kind = SometimesBusy
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n' * 4)
    rows = [json.loads(line) for line in headrace("generate", "echo", "--input", path).stdout.splitlines()]
    assert [row["text"] for row in rows] == ["a"] * 4
    assert num_refused == 3
