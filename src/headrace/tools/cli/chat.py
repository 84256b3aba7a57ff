"""`headrace chat`: a conversation in the terminal."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import click

from headrace.core.answer_format.parser import ContentText, Part, ReasoningText
from headrace.core.errors import HeadraceError, SettingsError, UserError
from headrace.core.generation import ChatPrompt, Chunk, GenerationRequest, SamplingParams
from headrace.core.sampling_defaults import RECOMMENDED
from headrace.tools.cli.answers import collect, ending_note
from headrace.tools.cli.chat_input import read_from_stdin
from headrace.tools.cli.group import Examples
from headrace.tools.cli.progress import watching
from headrace.tools.cli.sampling_options import sampling_options, sampling_params
from headrace.tools.cli.setting_options import ENGINE_SETTINGS, setting_options
from headrace.tools.cli.sources import Source, opened_source
from headrace.tools.cli.tables import count_of, wrapped
from headrace.tools.cli.terminal import PartWriter, Stopwatch, waiting_for_answer, write_text

EXAMPLES = """
headrace chat smollm2                                  load the model in this process
headrace chat smollm2 --system "Answer in one line."   with a system message
headrace chat --url http://127.0.0.1:8080              talk to a running server
echo "What is a headrace?" | headrace chat smollm2     questions from a pipe, one per line
"""

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


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model", required=False)
@click.option("--url", help="Use the server at this URL instead of loading a model.")
@click.option("--api-key", envvar="HEADRACE_API_KEY", help="API key for --url.  [env: HEADRACE_API_KEY]")
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
    Talk to MODEL: an alias (smollm2), a Hub id, a folder or a .gguf file.

    Answers are streamed. Commands begin with a slash; /help lists them. Three double quotes begin and end a message of
    several lines.
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
        """Return the request for the next answer."""
        if self.is_text:
            prompt = str(self.turns[-1]["content"])
            return GenerationRequest(request_id=uuid4().hex, prompt=prompt, sampling=self.sampling)
        head: list[dict[str, object]] = [{"role": "system", "content": self.system}] if self.system else []
        chat = ChatPrompt(messages=(*head, *self.turns))
        return GenerationRequest(request_id=uuid4().hex, prompt=chat, sampling=self.sampling, separates_reasoning=True)

    def add_answer(self, pieces: Sequence[Part], watch: Stopwatch) -> None:
        """Add a turn with the answer, and its counts."""
        content, reasoning = (
            "".join(piece.text for piece in pieces if isinstance(piece, kind)) for kind in (ContentText, ReasoningText)
        )
        turn: dict[str, object] = {"role": "assistant", "content": content}
        self.turns.append(turn | ({"reasoning_content": reasoning} if reasoning else {}))
        self.last = watch
        self.num_answers += 1
        self.num_tokens += watch.num_tokens

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()


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
    if name in {"/exit", "/quit", "/bye"}:
        return False
    action = _ACTIONS.get(name)
    click.echo(
        action(conversation, rest.strip()) if action else f"{name} is not a command.\n{COMMANDS.strip()}", err=True
    )
    return True


def _reset(conversation: Conversation, _: str) -> str:
    conversation.reset()
    return "The conversation is cleared."


def _system(conversation: Conversation, text: str) -> str:
    if conversation.is_text:
        return "The model has no chat template, so it takes no system message."
    if not text:
        return f"The system message is: {conversation.system}" if conversation.system else "There is no system message."
    conversation.system = text
    conversation.reset()
    return "The system message is set, and the conversation is cleared."


def _stats(conversation: Conversation, _: str) -> str:
    if conversation.last is None:
        return "There are no answers yet."
    total = f"{count_of(conversation.num_answers, 'answer')}, {count_of(conversation.num_tokens, 'token')}"
    context = (
        ""
        if conversation.last.finish is None
        else f"; the prompt had {count_of(conversation.last.finish.prompt_tokens, 'token')}"
    )
    return f"last: {conversation.last.line()}{context}\nall:  {total}"


_ACTIONS: dict[str, Callable[[Conversation, str], str]] = {
    "/reset": _reset,
    "/system": _system,
    "/stats": _stats,
    "/help": lambda _, __: COMMANDS.strip(),
}


def _answer(runner: asyncio.Runner, source: Source, conversation: Conversation, text: str) -> None:
    """Stream the answer to a message. A rejected message is dropped from the conversation; a stopped answer is kept."""
    conversation.turns.append({"role": "user", "content": text})
    pieces: list[Part] = []
    watch = Stopwatch()
    try:
        runner.run(_stream(source, conversation.request(), pieces, watch))
    except KeyboardInterrupt:
        write_text(" …")
    except HeadraceError as error:
        conversation.turns.pop()
        click.echo(wrapped(f"{error.message}{_advice(error)}", stream=sys.stderr), err=True)
        return
    click.echo()
    _say_ending(conversation, pieces, watch)
    conversation.add_answer(pieces, watch)
    if sys.stderr.isatty():
        click.secho(f"[{watch.line()}]", err=True, dim=True)


def _say_ending(conversation: Conversation, pieces: Sequence[Part], watch: Stopwatch) -> None:
    """Say on stderr that an answer was cut or has no text."""
    has_text = any(not isinstance(piece, ReasoningText) for piece in pieces)
    limit = conversation.sampling.max_new_tokens
    note = ending_note(watch.finish, has_text=has_text, has_reasoning=bool(pieces), max_new_tokens=limit)
    if note is not None:
        click.echo(wrapped(note, stream=sys.stderr), err=True)


def _advice(error: HeadraceError) -> str:
    return " /reset clears the conversation." if isinstance(error, UserError) and "too_long" in error.code else ""


async def _stream(source: Source, request: GenerationRequest, pieces: list[Part], watch: Stopwatch) -> None:
    """Write the answer as it comes, and collect its parts."""
    writer = PartWriter()

    with watching(source.info.name, waiting_for_answer) as end_wait:

        def on_chunk(chunk: Chunk, parts: Sequence[Part]) -> None:
            end_wait()
            watch.record(chunk)
            for part in parts:
                pieces.append(part)
                writer.write(part)

        await collect(source, request, on_chunk)
