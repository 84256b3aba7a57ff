"""Constrained answers match their grammar, whatever the model prefers."""

import asyncio
import json
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from structlog.testing import capture_logs

from headrace.core.errors import Busy, InvalidRequest, Unavailable
from headrace.core.generation import FinishReason, Grammar, GrammarKind
from headrace.inference.engine.structured_output.compiler import GrammarCompiler, new_matcher
from headrace.inference.engine.structured_output.state import GrammarState
from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_tokenizer import read_gguf_tokenizer
from headrace.inference.runner.step import StepInput
from tests.inference.engine.support import (
    VOCAB_SIZE,
    ask,
    ask_all,
    byte_tokenizer,
    core_of,
    make_engine,
    request,
    runner_limits,
    running,
)
from tests.waiting import WAIT_S

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))
EXPLOSIVE = "^((.{1,1000}){1,1000}){1,1000}$"
SMOLLM2_VOCAB_SIZE = 49152


async def test_every_choice_matches_the_json_schema() -> None:
    async with running(make_engine()) as engine:
        answers = await ask_all(engine, request("x", n=4, temperature=2.0, seed=1, max_new_tokens=300, grammar=JSON))
    for answer in answers:
        assert answer.finish.reason is FinishReason.EOS
        jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert len({answer.text for answer in answers}) > 1


async def test_an_answer_matches_its_regex() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", grammar=Grammar("regex", r"\d{3}-\d{4}"), min_new_tokens=0))
    assert re.fullmatch(r"\d{3}-\d{4}", answer.text)
    assert answer.finish.reason is FinishReason.EOS


@pytest.mark.parametrize("kind", ["lark", "ebnf"])
@pytest.mark.parametrize(
    "text", ['start: "yes" | "no"', '?start: word\n!word: "yes"\n    | "no"'], ids=["plain", "marked"]
)
async def test_an_answer_matches_its_lark_grammar(kind: GrammarKind, text: str) -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", grammar=Grammar(kind, text)))
    assert answer.text in {"yes", "no"}


async def test_forced_tokens_take_no_step() -> None:
    grammar = Grammar("regex", "the only text that may come here is this[0-9]")
    async with running(make_engine()) as engine:
        num_steps = engine.stats().steps_total
        answer = await ask(engine, request("x", grammar=grammar, max_new_tokens=100))
        num_steps = engine.stats().steps_total - num_steps
    assert re.fullmatch(grammar.text, answer.text)
    assert answer.finish.output_tokens == len(answer.tokens) == len(answer.text)
    assert num_steps <= 5


@pytest.mark.parametrize("grammar", [JSON, Grammar("regex", "abc(def|dog)[0-9]{3}end")])
async def test_forced_tokens_are_the_tokens_that_would_have_been_drawn(grammar: Grammar) -> None:
    without_logprobs = request("x", temperature=1.0, seed=4, max_new_tokens=200, grammar=grammar)
    with_logprobs = replace(without_logprobs, sampling=replace(without_logprobs.sampling, logprobs=0))
    async with running(make_engine()) as engine:
        jumped, drawn = await ask(engine, without_logprobs), await ask(engine, with_logprobs)
    assert [token.id for token in jumped.tokens] == [token.id for token in drawn.tokens]
    assert all(token.logprob is not None for token in drawn.tokens)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 10, 20])
async def test_forced_tokens_respect_the_length_limit(max_new_tokens: int) -> None:
    grammar = Grammar("regex", "a text that is much longer than what may be said")
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", grammar=grammar, max_new_tokens=max_new_tokens))
    assert answer.text == grammar.text[:max_new_tokens]
    assert answer.finish.reason is FinishReason.LENGTH


async def test_a_constrained_answer_does_not_depend_on_the_batch_or_preemption() -> None:
    wanted = [request(f"{i}" * 30, max_new_tokens=120, temperature=1.0, seed=i, grammar=JSON) for i in range(8)]
    async with running(make_engine()) as engine:
        alone = [await ask(engine, request) for request in wanted]
    async with running(make_engine(room=runner_limits(12))) as engine:
        core_of(engine).scheduler._expected_output_tokens = 1.0
        together = await asyncio.gather(*(ask(engine, request) for request in wanted))
        assert engine.stats().preemptions_total > 0
    assert [answer.text for answer in together] == [answer.text for answer in alone]


async def test_an_answer_is_one_of_the_choices() -> None:
    choices = ['a "quoted" one', "back\\slash\n", "ü"]
    async with running(make_engine()) as engine:
        grammar = Grammar("choice", json.dumps(choices))
        answers = await ask_all(engine, request("x", n=8, temperature=2.0, seed=1, grammar=grammar))
    assert {answer.text for answer in answers} <= set(choices)
    assert len({answer.text for answer in answers}) > 1


async def test_an_answer_matches_its_gbnf_grammar() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", grammar=Grammar("ebnf", 'root ::= yes | "no"\nyes ::= "yes" [0-9]')))
    assert re.fullmatch(r"yes[0-9]|no", answer.text)


async def test_a_refusal_names_the_clients_field() -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await ask(engine, request("x", grammar=Grammar("choice", "[]", param="guided_choice")))
    assert refused.value.param == "guided_choice"


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "[0-9"),
        Grammar("choice", '[""]'),
        Grammar("choice", '{"a": 1}'),
        Grammar("ebnf", "root ::= missing"),
        Grammar("ebnf", "root ::= ("),
        Grammar("json_schema", '{"type": "nonsense"}'),
        Grammar("json_schema", '{"type'),
        Grammar("lark", "start: missing"),
        Grammar("json_schema", "x" * 1_000_001),
        Grammar("json_schema", '{"$ref": "#"}'),
    ],
    ids=["regex", "empty choice", "choice", "ebnf rule", "ebnf", "type", "json", "lark", "size", "loop"],
)
async def test_an_invalid_grammar_is_refused(grammar: Grammar) -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await ask(engine, request("x", grammar=grammar))
        assert engine.stats().num_waiting == 0
    assert refused.value.param == "grammar"
    assert "state>" not in refused.value.message


@pytest.mark.model
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", EXPLOSIVE, param="structured_outputs.regex"),
        Grammar("json_schema", json.dumps({"type": "string", "pattern": EXPLOSIVE}), param="json_schema"),
        Grammar("json_schema", json.dumps({"properties": {"a": {"items": {"pattern": EXPLOSIVE}}}}), param="tools"),
    ],
    ids=["regex", "pattern", "nested pattern"],
)
async def test_an_expression_with_exponential_states_is_refused_before_the_answer_begins(
    grammar: Grammar, smollm2_path: Path
) -> None:
    tokenizer = read_gguf_tokenizer(open_gguf(smollm2_path), SMOLLM2_VOCAB_SIZE)
    compiler = GrammarCompiler(tokenizer, vocab_size=SMOLLM2_VOCAB_SIZE)
    with pytest.raises(InvalidRequest, match="too complex") as refused:
        await compiler.compile(grammar)
    assert refused.value.param == grammar.param
    compiler.close()


@pytest.mark.parametrize("grammar", [JSON, Grammar("regex", "[0-9")], ids=["valid", "refused"])
async def test_a_grammar_is_compiled_once(grammar: Grammar) -> None:
    class CountingTokenizer:
        num_uses = 0

        def grammar_tokenizer(self) -> object:
            self.num_uses += 1
            return byte_tokenizer().grammar_tokenizer()

    tokenizer = CountingTokenizer()
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE)
    both = await asyncio.gather(*(compiler.compile(grammar) for _ in range(2)), return_exceptions=True)
    later = await asyncio.gather(compiler.compile(replace(grammar, param="other")), return_exceptions=True)
    compiler.close()
    assert tokenizer.num_uses == 1
    assert len({id(state) for state in both + later}) == 3
    assert [getattr(state, "param", None) for state in both + later] in ([None] * 3, ["grammar", "grammar", "other"])


async def test_a_small_grammar_does_not_wait_for_a_large_one() -> None:
    compiler = GrammarCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE, timeout_s=WAIT_S)
    names = {f"property number {i}": {"type": "string", "maxLength": 20} for i in range(1500)}
    large = asyncio.create_task(compiler.compile(Grammar("json_schema", json.dumps({"properties": names}))))
    await asyncio.sleep(0)
    await compiler.compile(JSON)
    assert not large.done()
    await large
    compiler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own elsewhere")
async def test_large_grammars_are_compiled_at_a_lower_priority_than_small_ones_and_the_model(monkeypatch) -> None:
    priorities: list[int] = []

    def observed(tokenizer: object, source: str) -> object:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return new_matcher(tokenizer, source)

    monkeypatch.setattr("headrace.inference.engine.structured_output.compiler.new_matcher", observed)
    compiler = GrammarCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE)
    await compiler.compile(JSON)
    await compiler.compile(Grammar("json_schema", json.dumps({"enum": [f"value {i}" for i in range(2000)]})))
    compiler.close()
    small, large = priorities
    assert small < large or small == 19


class ObservedTokenizer:
    """Notes when the vocabulary for grammars is built; `error` is raised instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.is_built = threading.Event()
        self._error = error

    def grammar_tokenizer(self) -> object:
        self.is_built.set()
        if self._error is not None:
            raise self._error
        return byte_tokenizer().grammar_tokenizer()


async def test_the_vocabulary_for_grammars_is_built_while_there_is_no_request(monkeypatch) -> None:
    monkeypatch.setattr("headrace.inference.engine.service.async_engine._VOCABULARY_DELAY_S", 0.01)
    tokenizer = ObservedTokenizer()
    engine = make_engine()
    engine._processor.grammars._tokenizer = tokenizer
    async with running(engine):
        stream = engine.generate(request("x", max_new_tokens=300, ignore_eos=True))
        await anext(stream)
        await asyncio.sleep(0.1)
        was_built = tokenizer.is_built.is_set()
        await stream.aclose()
        assert await asyncio.to_thread(tokenizer.is_built.wait, WAIT_S)
    assert not was_built


async def test_a_vocabulary_that_llguidance_cannot_read_is_logged() -> None:
    compiler = GrammarCompiler(ObservedTokenizer(ValueError("an unknown kind")), vocab_size=VOCAB_SIZE)
    with capture_logs() as logs:
        await compiler.build_vocabulary()
    compiler.close()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("engine.no_grammars", "warning")]
    assert "an unknown kind" in logs[0]["error"]


class StuckTokenizer:
    """The compilations that use it first do not end before `go_on` is set."""

    def __init__(self, num_stuck: int) -> None:
        self.go_on = threading.Event()
        self.is_stuck = threading.Event()
        self.num_uses = 0
        self._num_stuck = num_stuck

    def grammar_tokenizer(self) -> object:
        self.num_uses += 1
        if self.num_uses <= self._num_stuck:
            self.is_stuck.set()
            self.go_on.wait(WAIT_S)
        return byte_tokenizer().grammar_tokenizer()


async def test_a_compilation_that_takes_too_long_is_abandoned_and_the_next_grammar_is_compiled() -> None:
    tokenizer = StuckTokenizer(1)
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, timeout_s=0.05)
    slow = replace(JSON, param="response_format")
    with pytest.raises(InvalidRequest, match=r"0\.05 s \(grammar_timeout_s\)") as refused:
        await compiler.compile(slow)
    compiler._small._timeout_s = WAIT_S
    await compiler.compile(Grammar("regex", "[a-z]{3}"))
    tokenizer.go_on.set()
    await compiler.compile(slow)  # the refusal is not cached
    compiler.close()
    assert refused.value.param == "response_format"


async def test_abandoned_compilations_are_few() -> None:
    tokenizer = StuckTokenizer(3)
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, timeout_s=0.05)
    grammars = [Grammar("regex", f"[a-z]{{{number}}}") for number in range(1, 4)]
    refusals = [await asyncio.gather(compiler.compile(grammar), return_exceptions=True) for grammar in grammars]
    tokenizer.go_on.set()
    compiler.close()
    assert [type(refusal) for [refusal] in refusals] == [InvalidRequest, InvalidRequest, Busy]


async def test_a_client_that_leaves_does_not_end_the_compilation_for_others() -> None:
    compiler = GrammarCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE)
    first, second = (asyncio.create_task(compiler.compile(JSON)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).is_complete
    compiler.close()


async def test_a_queued_compilation_is_dropped_when_its_last_client_leaves() -> None:
    tokenizer = StuckTokenizer(1)
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, timeout_s=WAIT_S)
    running = asyncio.create_task(compiler.compile(Grammar("regex", "running")))
    assert await asyncio.to_thread(tokenizer.is_stuck.wait, WAIT_S)
    left = [asyncio.create_task(compiler.compile(Grammar("regex", f"[a-z]{{{n}}}"))) for n in range(1, 63)]
    both = [asyncio.create_task(compiler.compile(JSON)) for _ in range(2)]
    await asyncio.sleep(0)
    for client in (*left, both[0]):
        client.cancel()
    await asyncio.gather(*left, both[0], return_exceptions=True)
    again = asyncio.create_task(compiler.compile(Grammar("regex", "[a-z]{1}")))
    tokenizer.go_on.set()
    await asyncio.gather(running, again, both[1])
    compiler.close()
    assert tokenizer.num_uses == 3


async def test_a_compilation_in_progress_ends_for_later_requests_when_its_client_leaves() -> None:
    tokenizer = StuckTokenizer(1)
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, timeout_s=WAIT_S)
    client = asyncio.create_task(compiler.compile(JSON))
    assert await asyncio.to_thread(tokenizer.is_stuck.wait, WAIT_S)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    tokenizer.go_on.set()
    await compiler.compile(JSON)
    compiler.close()
    assert tokenizer.num_uses == 1


async def test_closing_waits_for_no_compilation_and_refuses_the_requests_that_wait() -> None:
    tokenizer = StuckTokenizer(1)
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, timeout_s=WAIT_S)
    first = asyncio.create_task(compiler.compile(JSON))
    assert await asyncio.to_thread(tokenizer.is_stuck.wait, WAIT_S)
    second = asyncio.create_task(compiler.compile(Grammar("regex", "queued")))
    await asyncio.sleep(0)
    compiler.close()
    assert not tokenizer.go_on.is_set()
    results = await asyncio.gather(first, second, compiler.compile(JSON), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    tokenizer.go_on.set()


async def test_compilations_beyond_the_queue_limit_are_refused_as_busy() -> None:
    compiler = GrammarCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE)
    grammars = [Grammar("regex", f"[a-z]{{{number}}}") for number in range(1, 67)]
    results = await asyncio.gather(*map(compiler.compile, grammars), return_exceptions=True)
    assert [type(result) for result in results[64:]] == [Busy, Busy]
    assert all(isinstance(result, GrammarState) for result in results[:64])
    await compiler.compile(grammars[-1])
    compiler.close()


async def test_a_grammar_that_fails_midway_ends_its_request_only() -> None:
    def break_grammar(step: StepInput) -> None:
        for choice in core_of(engine)._choices.values():
            if choice.request_id == "broken" and choice.sequence.num_output_tokens == 3:
                choice.extras.grammar.matcher.consume_token(0)

    engine = make_engine(before_step=break_grammar)
    async with running(engine):
        grammar = Grammar("regex", "[a-z]{20}", param="structured_outputs.regex")
        broken, healthy = await asyncio.gather(
            ask(engine, request("x", "broken", grammar=grammar)), ask(engine, request("x", "healthy", grammar=grammar))
        )
    assert broken.finish.reason is FinishReason.ERROR
    assert "cannot be enforced any further" in (broken.finish.message or "")
    assert broken.finish.param == "structured_outputs.regex"
    assert (healthy.finish.reason, len(healthy.text)) == (FinishReason.EOS, 20)
