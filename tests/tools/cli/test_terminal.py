import io
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.answer_format.parser import ContentText, ReasoningText
from headrace.core.client_text import printable
from headrace.core.generation import Chunk, Finish, FinishReason, ModelInfo
from headrace.serving.handlers.spec import ContractName, HandlerSpec
from headrace.tools.cli.answers import PartWriter, Stopwatch
from headrace.tools.cli.ready import BEGINNING, QUESTION, code_ready_text, prompt_for, ready_text
from headrace_handler.contract import Load


@given(st.text())
def test_model_output_cannot_control_the_terminal(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_ordinary_text_is_shown_as_it_is() -> None:
    text = "é 漢字 🙂\n\tnext"
    assert text == printable(text)


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "\x1b[2mHm\ufffd\x1b[0m\n\n4"), (False, "4")])
def test_reasoning_is_dimmed_on_a_terminal_and_left_out_of_a_pipe(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, shown: str
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    writer = PartWriter()
    for part in (ReasoningText("Hm\x07"), ContentText("4")):
        writer.write(part)
    assert out.getvalue() == shown


def test_a_stopwatch_counts_by_the_finish_and_by_pieces_until_then() -> None:
    watch = Stopwatch(started_s=time.perf_counter())
    watch.record(Chunk(text="a"))
    watch.record(Chunk(text="b"))
    assert watch.num_tokens == 2
    watch.record(Chunk(finish=Finish(reason=FinishReason.EOS, prompt_tokens=9, output_tokens=5, cached_tokens=4)))
    assert watch.num_tokens == 5
    assert "4 of 9 prompt tokens from the cache" in watch.line()
    assert watch.tokens_per_s is not None


def test_an_empty_answer_has_no_speed() -> None:
    watch = Stopwatch()
    watch.record(Chunk(finish=Finish(reason=FinishReason.EOS, prompt_tokens=1, output_tokens=0)))
    assert watch.line() == "0 tokens"


INFO = ModelInfo(
    name="smollm2",
    revision=None,
    family="llama",
    dtype="w4a16",
    kv_dtype="bf16",
    device="cpu (avx512)",
    max_model_len=8192,
    max_prompt_tokens=8191,
    max_num_seqs=64,
    vocab_size=49152,
    num_parameters=134_000_000,
    has_chat_template=True,
    created_s=0,
)
BASE = replace(INFO, has_chat_template=False)
EMBEDDER = replace(INFO, has_chat_template=False, generates=False)
URL = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("info", "addresses", "request_line"),
    [
        (INFO, ("chat page", "OpenAI", "Anthropic", "Ollama"), f"curl {URL}/v1/chat/completions"),
        (BASE, ("chats", "chat page", "OpenAI", "Ollama"), f"curl {URL}/v1/completions"),
        (EMBEDDER, ("OpenAI", "Ollama"), f"curl {URL}/v1/embeddings"),
    ],
)
def test_the_card_of_a_ready_server_has_addresses_for_clients_and_one_request(
    info: ModelInfo, addresses: tuple[str, ...], request_line: str
) -> None:
    card = ready_text(URL, info)
    rows = [line[2:].partition("  ")[0] for line in card.strip("\n").splitlines()]
    assert tuple(rows[1 : rows.index("")]) == addresses
    assert "w4a16 on cpu (avx512), 8,192 tokens of context" in card
    assert f"  {request_line} \\\n" in card
    assert card.count("curl ") == 1
    assert "KEY" not in card
    assert max(map(len, card.splitlines())) <= 80


def test_the_card_of_a_server_with_a_key_says_how_to_send_it() -> None:
    card = ready_text(URL, INFO, needs_key=True)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OLLAMA_API_KEY", '-H "Authorization: Bearer $KEY"'):
        assert name in card


@pytest.mark.parametrize(
    ("contract", "profile", "request_line"),
    [
        ("djl", "", "curl -N http://127.0.0.1:8080/invocations -H 'Content-Type: application/json'"),
        ("torchserve", "", "curl -N http://127.0.0.1:8080/predictions/shout -H 'Content-Type: application/json'"),
        ("sagemaker", "sklearn", "curl -N http://127.0.0.1:8080/invocations -H 'Content-Type: text/csv'"),
    ],
)
def test_the_ready_message_of_user_code_shows_a_request_of_its_contract(
    contract: ContractName, profile: str, request_line: str
) -> None:
    load = Load(model_name="shout", model_dir=Path("m"), entry="", options={"profile": profile})
    spec = HandlerSpec(contract=contract, load=load, min_workers=1, max_workers=2)

    card = code_ready_text("http://127.0.0.1:8080", spec)

    assert request_line in card
    assert "1 to 2 processes" in card


@pytest.mark.parametrize(
    ("models", "prompt"),
    [
        ([{"id": "chat", "has_chat_template": True}], QUESTION),
        ([{"id": "base", "has_chat_template": False}], BEGINNING),
        ([{"id": "of another server"}], QUESTION),
        ([], QUESTION),
    ],
)
def test_a_base_model_is_given_a_text_to_continue(models: list[dict[str, object]], prompt: str) -> None:
    assert prompt_for(models) == prompt
