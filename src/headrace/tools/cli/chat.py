"""`headrace chat`: a conversation in the terminal."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from headrace.core.answer_format.parser import ContentText, Part, ReasoningText
from headrace.core.errors import HeadraceError, SettingsError, UserError
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.core.sampling_defaults import RECOMMENDED
from headrace.tools.cli.answers import PartWriter, Stopwatch, collect_shown, ending_note, prompt_request, write_text
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.sampling_options import SAMPLING_GROUPS, sampling_options, sampling_params
from headrace.tools.cli.setting_options import ENGINE_SETTINGS, groups_of, setting_options
from headrace.tools.cli.sources import Source, opened_source
from headrace.tools.cli.tables import count_of, wrapped

EXAMPLES = """
headrace chat smollm2                                  load the model here
headrace chat smollm2 --system "Answer in one line."   set the system message
headrace chat --url http://127.0.0.1:8080              use a running server
echo "What is a headrace?" | headrace chat smollm2     one question per line
"""
_GROUPS = {"Conversation": ("system", "url", "api_key"), **SAMPLING_GROUPS, **groups_of()}
_COMMON = (
    *("system", "url", "api_key", "max_new_tokens", "temperature", "top_p", "seed"),
    *("dtype", "max_model_len", "threads", "backend"),
)

COMMANDS = """
/reset        clear the conversation
/system TEXT  set the system message and clear the conversation
/system       show the system message
/stats        show the speed and the token counts
/help         show this list
/exit         leave (also Ctrl-D)
\"""           begins and ends a message of several lines

A text that is pasted is one message. Ctrl-C stops an answer, not the program.
"""

_CONTINUES = (
    "is a base model, without a chat template: it continues the text that you enter, each time from that text alone. "
    "For a conversation, use an instruct model, or give a template with --chat-template."
)
MAX_NEW_TOKENS = 4096
"""Default: room for an answer with its reasoning. An answer that repeats itself ends earlier."""
_QUOTES = '"""'
"""Opens and closes a message of several lines."""


@click.command(cls=HelpfulCommand, examples=EXAMPLES, groups=_GROUPS, common=_COMMON)
@click.argument("model", required=False)
@click.option("--url", metavar="URL", help="Use the server at this URL instead of loading a model.")
@click.option("--api-key", envvar="HEADRACE_API_KEY", metavar="KEY", help="API key for --url.  [env: HEADRACE_API_KEY]")
@click.option("--system", metavar="TEXT", help="System message.")
@sampling_options(
    without=("n", "best_of", "logprobs", "prompt_logprobs"),
    max_new_tokens=MAX_NEW_TOKENS,
    **dict.fromkeys(RECOMMENDED),
)
@setting_options(*ENGINE_SETTINGS)
@click.pass_context
def chat(ctx: click.Context, /, model: str | None, **options: Any) -> None:
    """
    Talk to a model in the terminal.

    MODEL is an alias (smollm2), a Hub id, a folder or a .gguf file. In the conversation, /help lists the commands, and
    three double quotes begin and end a message of several lines.
    """
    sampling_params(options)  # refuse invalid options before a model is loaded
    with opened_source(ctx, model, options) as (runner, source):
        sampling = sampling_params(options, source.info.recommended)
        is_text = not source.info.has_chat_template
        if is_text and options["system"]:
            raise SettingsError(
                f"{source.info.name} has no chat template, so it takes no system message. Leave out --system."
            )
        talk(runner, source, Conversation(sampling=sampling, is_text=is_text, system=options["system"] or ""))


@dataclass(slots=True)
class Conversation:
    """The turns of a conversation and its sampling parameters."""

    sampling: SamplingParams
    is_text: bool = False
    """Each message is a text to continue, as the model has no chat template."""
    system: str = ""
    turns: list[dict[str, object]] = field(default_factory=list)
    last: Stopwatch | None = None
    num_answers: int = 0
    num_tokens: int = 0

    def request(self) -> GenerationRequest:
        if self.is_text:
            return prompt_request(str(self.turns[-1]["content"]), self.sampling)
        head: list[dict[str, object]] = [{"role": "system", "content": self.system}] if self.system else []
        return prompt_request(ChatPrompt(messages=(*head, *self.turns)), self.sampling)

    def add_answer(self, pieces: Sequence[Part], watch: Stopwatch) -> None:
        content, reasoning = (
            "".join(piece.text for piece in pieces if isinstance(piece, kind)) for kind in (ContentText, ReasoningText)
        )
        turn: dict[str, object] = {"role": "assistant", "content": content}
        self.turns.append(turn | ({"reasoning_content": reasoning} if reasoning else {}))
        self.last = watch
        self.num_answers += 1
        self.num_tokens += watch.num_tokens


def talk(runner: asyncio.Runner, source: Source, conversation: Conversation) -> None:
    """Read messages and commands until the end of the input; answer each or run it."""
    is_terminal = sys.stdin.isatty()
    if conversation.is_text:
        click.echo(wrapped(f"{source.info.name} {_CONTINUES}", stream=sys.stderr), err=True)
    if is_terminal:
        click.echo(f"{source.info.name} on {source.info.device}. /help lists the commands.", err=True)
    while (entered := read_from_stdin(is_terminal=is_terminal)) is not None:
        if entered.is_command:
            if not run_command(entered.text, conversation):
                return
        elif entered.text.strip():
            _answer(runner, source, conversation, entered.text)


def run_command(line: str, conversation: Conversation) -> bool:
    """Run the command in a line that begins with a slash; return False to leave."""
    name, _, rest = line.partition(" ")
    match name:
        case "/exit" | "/quit" | "/bye":
            return False
        case "/reset":
            conversation.turns.clear()
            said = "The conversation is cleared."
        case "/system":
            said = _system(conversation, rest.strip())
        case "/stats":
            said = _stats(conversation)
        case _:
            said = COMMANDS.strip() if name == "/help" else f"{name} is not a command.\n{COMMANDS.strip()}"
    click.echo(said, err=True)
    return True


def _system(conversation: Conversation, text: str) -> str:
    """Set or show the system message; return what to say."""
    if conversation.is_text:
        return "The model has no chat template, so it takes no system message."
    if not text:
        return f"The system message is: {conversation.system}" if conversation.system else "There is no system message."
    conversation.system = text
    conversation.turns.clear()
    return "The system message is set, and the conversation is cleared."


def _stats(conversation: Conversation) -> str:
    if conversation.last is None:
        return "There are no answers yet."
    total = f"{count_of(conversation.num_answers, 'answer')}, {count_of(conversation.num_tokens, 'token')}"
    finish = conversation.last.finish
    context = "" if finish is None else f"; the prompt had {count_of(finish.prompt_tokens, 'token')}"
    return f"last: {conversation.last.line()}{context}\nall:  {total}"


def _answer(runner: asyncio.Runner, source: Source, conversation: Conversation, text: str) -> None:
    """Stream the answer to a message. A rejected message is dropped from the conversation; a stopped answer is kept."""
    conversation.turns.append({"role": "user", "content": text})
    pieces: list[Part] = []
    watch, writer = Stopwatch(), PartWriter()

    def on_part(part: Part) -> None:
        pieces.append(part)
        writer.write(part)

    try:
        runner.run(collect_shown(source, conversation.request(), watch, on_part))
    except KeyboardInterrupt:
        write_text(" …")
    except HeadraceError as error:
        conversation.turns.pop()
        advice = " /reset clears the conversation." if isinstance(error, UserError) and "too_long" in error.code else ""
        click.echo(wrapped(f"{error.message}{advice}", stream=sys.stderr), err=True)
        return
    click.echo()
    has_text = any(not isinstance(piece, ReasoningText) for piece in pieces)
    limit = conversation.sampling.max_new_tokens
    note = ending_note(watch.finish, has_text=has_text, has_reasoning=bool(pieces), max_new_tokens=limit)
    if note is not None:
        click.echo(wrapped(note, stream=sys.stderr), err=True)
    conversation.add_answer(pieces, watch)
    if sys.stderr.isatty():
        click.secho(f"[{watch.line()}]", err=True, dim=True)


@dataclass(frozen=True, slots=True)
class Entered:
    """A message for the model, or a command of the conversation."""

    text: str
    is_command: bool = False


def read_entered(read_line: Callable[[str], str | None]) -> Entered | None:
    """
    Read a message or a command; None at the end of the input, which also closes an open message.

    `read_line` reads a line with a prompt, or several lines at once if they are pasted.
    """
    line = read_line("\n> ")
    if line is None:
        return None
    text = line.lstrip()
    if not text.startswith(_QUOTES):
        return Entered(line, is_command=line.startswith("/") and "\n" not in line)
    text = text.removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES) and (more := read_line(". ")) is not None:
        text += f"\n{more}"
    return Entered(text.rstrip().removesuffix(_QUOTES).strip("\n"))


def read_from_stdin(*, is_terminal: bool) -> Entered | None:
    """Read from the terminal or a pipe; on a terminal Ctrl-C only discards what was entered so far."""
    while True:
        try:
            return read_entered(_ask if is_terminal else _next_line)
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            click.echo("\n(/exit or Ctrl-D to leave)", err=True)


def _ask(prompt: str) -> str | None:
    import readline  # line editing and history for input()

    if "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")  # a paste is one entry; Python switches it off
    try:
        return input(prompt)
    except EOFError:
        click.echo(err=True)
        return None


def _next_line(_: str) -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
