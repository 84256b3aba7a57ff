import os
import pty
import readline
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.generation import ChatPrompt
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.tools.cli.chat import COMMANDS, Entered, read_entered


def contents(headrace, number: int) -> list[tuple[str, str]]:
    prompt = headrace.backend.requests[number].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


def test_every_line_is_answered_and_the_conversation_grows(headrace) -> None:
    result = headrace("chat", "echo", stdin="hello there\n\nand you\n")
    assert result.exit_code == 0
    assert result.stdout == "hello there\nand you\n"
    assert contents(headrace, 1) == [("user", "hello there"), ("assistant", "hello there"), ("user", "and you")]


def test_reset_forgets_the_turns_and_keeps_the_system_message(headrace) -> None:
    headrace("chat", "echo", "--system", "Be kind.", stdin="one\n/reset\ntwo\n")
    assert contents(headrace, 1) == [("system", "Be kind."), ("user", "two")]


def test_a_system_message_resets_the_conversation(headrace) -> None:
    result = headrace("chat", "echo", stdin="one\n/system Be brief.\n/system\ntwo\n")
    assert "The system message is: Be brief." in result.stderr
    assert contents(headrace, 1) == [("system", "Be brief."), ("user", "two")]


def test_stats_show_tokens_of_the_last_answer_and_of_all(headrace) -> None:
    result = headrace("chat", "echo", stdin="/stats\none two\nthree\n/stats\n")
    assert "There are no answers yet." in result.stderr
    assert "2 answers, 5 tokens" in result.stderr


def test_exit_leaves(headrace) -> None:
    headrace("chat", "echo", stdin="/exit\nnever asked\n")
    assert not headrace.backend.requests


def test_an_unknown_command_is_not_sent_to_the_model(headrace) -> None:
    result = headrace("chat", "echo", stdin="/what\n")
    assert "/what is not a command" in result.stderr
    assert not headrace.backend.requests


def test_a_line_that_is_too_long_is_reported_and_dropped(headrace) -> None:
    result = headrace("chat", "echo", stdin="word " * 700 + "\nshort\n")
    assert result.exit_code == 0
    assert "/reset clears the conversation" in result.stderr
    assert contents(headrace, 0) == [("user", "short")]


def test_an_engine_that_fails_in_the_middle_does_not_end_the_program(headrace) -> None:
    headrace.script = EchoScript(fail_after_tokens=1)
    result = headrace("chat", "echo", stdin="one two three\n")
    assert result.exit_code == 0
    assert "The echo broke" in result.stderr


def test_a_model_or_a_server_must_be_named(headrace) -> None:
    result = headrace("chat", stdin="")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_reasoning_is_left_out_of_a_pipe_and_kept_in_the_conversation(headrace) -> None:
    headrace.kind = partial(EchoBackend, answer_format=REASONING_TAGS)
    result = headrace("chat", "echo", stdin="<think>two</think> four\nnext\n<think>endless\n")
    assert result.stdout == "four\nnext\n\n"
    assert "ended within its reasoning" in result.stderr
    (_, turn, _) = headrace.backend.requests[1].prompt.messages
    assert (turn["content"], turn["reasoning_content"]) == ("four", "two")


def test_quotes_begin_and_end_a_message_of_several_lines(headrace) -> None:
    stdin = '"""\n/etc is\n\na folder\n"""\n"""in one line"""\n/reset\n"""never closed\nbut ended\n'
    assert headrace("chat", "echo", stdin=stdin).exit_code == 0
    asked = [contents(headrace, number)[-1][1] for number in range(3)]
    assert asked == ["/etc is\n\na folder", "in one line", "never closed\nbut ended"]


def test_a_paste_of_several_lines_is_a_message_and_never_a_command() -> None:
    assert read_entered(lambda _: "/usr/bin\n/usr/lib") == Entered("/usr/bin\n/usr/lib")
    assert read_entered(lambda _: "/help") == Entered("/help", is_command=True)
    assert read_entered(lambda _: None) is None


@pytest.mark.skipif("libedit" in (readline.__doc__ or ""), reason="libedit does not know pastes")
def test_a_paste_into_a_terminal_is_one_entry() -> None:
    """The test plays a terminal that marks a paste, as all current ones do."""
    program = "from headrace.tools.cli.chat import read_from_stdin as read; print(repr(read(is_terminal=True)))"
    terminal, end = pty.openpty()
    shown = b""
    with subprocess.Popen([sys.executable, "-c", program], stdin=end, stdout=end, stderr=end) as child:
        os.close(end)
        while b"> " not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"\x1b[200~one\ntwo\x1b[201~\r")
        with suppress(OSError):  # Linux reports the end of a terminal's last program as EIO
            while data := os.read(terminal, 1000):
                shown += data
    os.close(terminal)
    assert child.returncode == 0
    assert rb"Entered(text='one\ntwo', is_command=False)" in shown


def test_a_base_model_continues_each_text_and_says_so(headrace) -> None:
    headrace.kind = partial(EchoBackend, has_chat_template=False)
    result = headrace("chat", "echo", stdin="The sea\n/system Be kind.\nis blue\n")
    assert "is a base model, without a chat template: it continues the text that you enter" in result.stderr
    assert "has no chat template, so it takes no system message" in result.stderr
    assert [sent.prompt for sent in headrace.backend.requests] == ["The sea", "is blue"]
    assert result.stdout == "The sea\nis blue\n"
    refused = headrace("chat", "echo", "--system", "Be kind.", stdin="")
    assert refused.exit_code == 2
    assert "it takes no system message. Leave out --system." in refused.stderr


def test_an_answer_that_is_cut_says_so(headrace) -> None:
    result = headrace("chat", "echo", "-n", "2", stdin="one two three\n")
    assert result.stdout == "one two\n"
    assert "The answer was cut at 2 tokens. Raise --max-new-tokens (-n)." in result.stderr


def test_a_maximum_above_the_rest_of_the_context_is_the_rest(headrace) -> None:
    result = headrace("chat", "echo", "--ignore-eos", stdin="one two three\n")
    assert result.exit_code == 0
    assert "because the context is full" in result.stderr


def test_the_help_fits_a_narrow_terminal() -> None:
    assert all(len(line) <= 80 for line in COMMANDS.splitlines())
