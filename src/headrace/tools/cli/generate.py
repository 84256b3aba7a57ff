"""
`headrace generate`: run a prompt, or a file of prompts, without a server.

A file is run as a batch: JSON lines in, JSON lines out, in the same order. Every line of the output, failed ones
included, belongs to the line of the input with the same number. So an interrupted run can resume: the number of output
lines is the number of finished prompts.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import click
import msgspec

from headrace.core.client_text import reason_of
from headrace.core.errors import Busy, HeadraceError, InvalidRequest, SettingsError
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.tools.cli.answers import (
    CONTINUES_TEXT,
    Answer,
    PartWriter,
    Stopwatch,
    answer_values,
    collect,
    collect_shown,
    ending_note,
    prompt_request,
    write_text,
)
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.sampling_options import MAX_NEW_TOKENS, SAMPLING_GROUPS, sampling_options, sampling_params
from headrace.tools.cli.setting_options import ENGINE_SETTINGS, groups_of, setting_options
from headrace.tools.cli.sources import Source, opened_source
from headrace.tools.cli.tables import count_of

EXAMPLES = """
headrace generate smollm2 "What is 2+2?"                  answer a question
headrace generate smollm2 "The sea is" --completion       continue a text
cat letter.txt | headrace generate smollm2 - -n 200       read from a pipe
headrace generate smollm2 "Hi" --json                     print a JSON object
headrace generate --url http://127.0.0.1:8080 -p "Hi"     ask a server
headrace generate smollm2 --input in.jsonl -o out.jsonl   a file of prompts
"""
_GROUPS = {
    "Prompt": ("prompt_option", "system", "completion", "chat"),
    "File of prompts": ("input_path", "output_path", "resume", "overwrite"),
    **SAMPLING_GROUPS,
    "Result and server": ("as_json", "url", "api_key"),
    **groups_of(),
}
_COMMON = (
    *("prompt_option", "system", "completion", "input_path", "output_path", "as_json", "url"),
    *("max_new_tokens", "temperature", "seed", "json_schema", "dtype"),
)

_NUM_IN_FLIGHT = 128
"""Requests in flight: twice the engine's default concurrency, so that it can always fill its batch."""
_SAMPLING_NAMES = frozenset(field.name for field in fields(SamplingParams))


@click.command(cls=HelpfulCommand, examples=EXAMPLES, groups=_GROUPS, common=_COMMON)
@click.argument("model", required=False)
@click.argument("prompt", required=False)
@click.option(
    "--prompt",
    "-p",
    "prompt_option",
    metavar="TEXT",
    help="PROMPT as an option: the user message, or the text to continue; - reads stdin.",
)
@click.option("--completion", is_flag=True, help="Continue the prompt as text, without the model's chat template.")
@click.option("--chat", is_flag=True, help="Require a chat template: fail if the model has none.")
@click.option("--system", metavar="TEXT", help="System message; implies --chat.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with text, counts, times and log probabilities."
)
@click.option(
    "--input", "input_path", metavar="FILE",
    help='File of JSON lines with "prompt" or "messages", optional "id" and sampling options; - is stdin.',
)  # fmt: skip
@click.option(
    "--output",
    "-o",
    "output_path",
    metavar="FILE",
    help="With --input: file for the answers, in the order of the input.  [default: stdout]",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run that wrote to the file --output.")
@click.option("--overwrite", is_flag=True, help="Replace the file --output.")
@click.option("--url", metavar="URL", help="Use the server at this URL instead of loading a model.")
@click.option("--api-key", envvar="HEADRACE_API_KEY", metavar="KEY", help="API key for --url.  [env: HEADRACE_API_KEY]")
@sampling_options(max_new_tokens=MAX_NEW_TOKENS)
@setting_options(*ENGINE_SETTINGS)
@click.pass_context
def generate(ctx: click.Context, /, model: str | None, prompt: str | None, **options: Any) -> None:
    """
    Answer a prompt, or a file of prompts, without a server.

    MODEL is an alias (smollm2), a Hub id, a folder or a .gguf file. PROMPT becomes a user message in the model's chat
    template; a model without one, and any model with --completion, continues it as text. The prompt - stands for
    stdin.

    With --input, the prompts of a file run together (continuous batching). A line with "messages" is a chat, a line
    with "prompt" is a text to continue. A line that fails gets a line with "error" and does not stop the others.
    """
    given = [text for text in (prompt, options["prompt_option"], options["input_path"]) if text is not None]
    if len(given) != 1:
        raise SettingsError('Give either one prompt, as in `headrace generate smollm2 "Hi"`, or --input FILE.')
    if options["input_path"] is None and (options["output_path"] or options["resume"] or options["overwrite"]):
        raise SettingsError("--output, --resume and --overwrite are for a file of prompts, which --input names.")
    if options["completion"] and (options["chat"] or options["system"]):
        raise SettingsError("--completion continues the prompt as text; leave it out with --chat or --system.")
    sampling = sampling_params(options)
    # What is read is checked before a model is loaded.
    if options["input_path"] is not None:
        batch = Batch.read(options, sampling)
        with opened_source(ctx, model, options) as (runner, source):
            batch.run(runner, source)
        return
    text = sys.stdin.read() if given[0] == "-" else given[0]
    if not text:
        raise SettingsError("The prompt is empty.")
    with opened_source(ctx, model, options) as (runner, source):
        made = _prompt(text, options, has_chat_template=source.info.has_chat_template)
        if source.info.is_base and not options["completion"] and isinstance(made, str):
            click.echo(f"{source.info.name} {CONTINUES_TEXT}", err=True)
        show = _show_json if options["as_json"] else _show_text
        runner.run(show(source, prompt_request(made, sampling)))


def _prompt(text: str, options: dict[str, Any], *, has_chat_template: bool) -> str | ChatPrompt:
    """Return a chat if the model is trained for one or the options ask for it, else the text."""
    is_chat = options["chat"] or options["system"] or (has_chat_template and not options["completion"])
    if not is_chat:
        return text
    system = [{"role": "system", "content": options["system"]}] if options["system"] else []
    return ChatPrompt(messages=(*system, {"role": "user", "content": text}))


async def _show_json(source: Source, request: GenerationRequest) -> None:
    watch = Stopwatch()
    answers = await collect_shown(source, request, watch)
    times = {"ttft_s": watch.ttft_s, "tokens_per_s": watch.tokens_per_s}
    click.echo(json.dumps({"model": source.info.name, **answer_values(answers), **times}, ensure_ascii=False))


async def _show_text(source: Source, request: GenerationRequest) -> None:
    """Stream a single answer; write several in sequence when all are complete."""
    watch, is_single = Stopwatch(), request.sampling.n == 1
    answers = await collect_shown(source, request, watch, PartWriter().write if is_single else None)
    if not is_single:
        write_text("\n".join(f"--- {answer.index + 1}\n{answer.text}" for answer in answers))
    click.echo()
    is_raw = source.info.has_chat_template and not isinstance(request.prompt, ChatPrompt)
    for answer in answers:
        _say_ending(answer, request.sampling, is_raw=is_raw)
    if sys.stderr.isatty():
        click.secho(f"[{watch.line()}]", err=True, dim=True)


def _say_ending(answer: Answer, sampling: SamplingParams, *, is_raw: bool) -> None:
    note = ending_note(
        answer.finish,
        has_text=bool(answer.text),
        has_reasoning=bool(answer.reasoning),
        max_new_tokens=sampling.max_new_tokens,
        name="The answer" if sampling.n == 1 else f"Answer {answer.index + 1}",
    )
    if note is not None:
        hint = " It is trained for chats: try without --completion." if is_raw and not answer.text else ""
        click.echo(note + hint, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of the input: its request, or the reason why it has none."""

    index: int
    id: object
    """The `id` of the line, or None."""
    request: GenerationRequest | InvalidRequest


def parse_items(lines: Iterable[str], base: SamplingParams) -> Iterator[Item]:
    """
    Parse the input: `{"prompt": "..."}` or `{"messages": [...]}`, with `id` and any sampling option by its name.

    Blank lines are skipped. An invalid line becomes an item with an error; the others still run.
    """
    kept = (line for line in lines if line.strip())
    for index, line in enumerate(kept):
        item_id: object = None
        request: GenerationRequest | InvalidRequest
        try:
            row = _row(line)
            item_id = row.pop("id", None)
            request = _request(row, base)
        except InvalidRequest as error:
            request = error
        yield Item(index=index, id=item_id, request=request)


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"The line is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise InvalidRequest(f"The line is {line.strip()[:40]}; expected an object with 'prompt' or 'messages'.")
    return row


def _request(row: dict[str, Any], base: SamplingParams) -> GenerationRequest:
    prompt, messages = row.pop("prompt", None), row.pop("messages", None)
    if prompt is None and isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        prompt = ChatPrompt(messages=messages)
    elif not isinstance(prompt, str) or messages is not None:
        raise InvalidRequest("The line needs either a string 'prompt' or a list 'messages' of objects.")
    unknown = sorted(row.keys() - _SAMPLING_NAMES)
    if unknown:
        raise InvalidRequest(f"The line has {unknown[0]!r}; expected id, prompt, messages, or a sampling option.")
    try:
        sampling = msgspec.convert({**asdict(base), **row}, type=SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A sampling option is invalid: {error}.") from error
    return prompt_request(prompt, sampling)


def lines_done(output: Path, items: list[Item]) -> int:
    """
    Return the number of items that the output already has. A last line cut off by a crash is removed.

    Raises:
        SettingsError: the output does not belong to this input.
    """
    content = output.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with output.open("r+b") as file:
            file.truncate(len(whole))
    rows = [_output_row(line, output) for line in whole.splitlines()]
    agrees = len(rows) <= len(items) and all(
        row.get("index") == item.index and row.get("id") == item.id for row, item in zip(rows, items, strict=False)
    )
    if not agrees:
        raise SettingsError(f"{output} has answers to another input. Name another --output, or pass --overwrite.")
    return len(rows)


def _output_row(line: bytes, output: Path) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise SettingsError(f"{output} is not the output of a batch. Name another --output, or pass --overwrite.")
    return row


@dataclass(slots=True, kw_only=True)
class Batch:
    """A file of prompts: its items, the output and the number of items that the output already has."""

    items: list[Item]
    output: Path | None
    """None: standard output."""
    num_before: int

    @classmethod
    def read(cls, options: Mapping[str, Any], sampling: SamplingParams) -> Self:
        """
        Read the input, and find the items that are done.

        Raises:
            SettingsError: the output exists, and the options do not say to continue or to replace it.
        """
        path = options["input_path"]
        try:
            with nullcontext(sys.stdin) if path == "-" else Path(path).open(encoding="utf-8") as lines:
                items = list(parse_items(lines, sampling))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"--input is {path}; expected a readable file of JSON lines ({reason_of(error)})."
            ) from error
        output = None if options["output_path"] in {None, "-"} else Path(options["output_path"])
        num_before = 0
        if output is not None and output.exists() and not options["overwrite"]:
            if not options["resume"]:
                raise SettingsError(f"{output} exists. Pass --resume to continue it, or --overwrite to replace it.")
            num_before = lines_done(output, items)
        return cls(items=items, output=output, num_before=num_before)

    def run(self, runner: asyncio.Runner, source: Source) -> None:
        """Answer the items that are not done, show the progress, and print a summary."""
        started_s, remaining = time.perf_counter(), iter(self.items[self.num_before :])
        num_done, num_failed, num_tokens = self.num_before, 0, 0
        mode = "a" if self.num_before else "w"
        opened = nullcontext(sys.stdout) if self.output is None else self.output.open(mode, encoding="utf-8")
        with opened as file, showing_progress() as progress:
            waiting: dict[int, str] = {}
            num_written = self.num_before

            async def work() -> None:
                nonlocal num_done, num_failed, num_tokens, num_written
                for item in remaining:
                    row = await _answer_item(source, item)
                    waiting[item.index] = json.dumps(row, ensure_ascii=False)
                    while num_written in waiting:  # in the order of the input, whatever the order of arrival
                        file.write(f"{waiting.pop(num_written)}\n")
                        num_written += 1
                    file.flush()
                    num_done += 1
                    num_failed += "error" in row
                    num_tokens += sum(choice.get("output_tokens", 0) for choice in row.get("choices", [row]))
                    progress("prompts", num_done, len(self.items), "prompts")

            async def work_together() -> None:
                async with asyncio.TaskGroup() as group:
                    for _ in range(_NUM_IN_FLIGHT):
                        group.create_task(work())

            runner.run(work_together())
        seconds = max(time.perf_counter() - started_s, 1e-9)
        before = f", {self.num_before} done before" if self.num_before else ""
        failed = f", {num_failed} failed" if num_failed else ""
        speed = f"{num_tokens:,} tokens in {seconds:.1f} s ({num_tokens / seconds:,.0f} tokens/s)"
        click.echo(f"{count_of(num_done - self.num_before, 'prompt')}{failed}{before}, {speed}", err=True)


async def _answer_item(source: Source, item: Item) -> dict[str, Any]:
    head = {"index": item.index, **({} if item.id is None else {"id": item.id})}
    try:
        if isinstance(item.request, InvalidRequest):
            raise item.request
        while True:
            try:
                return {**head, **answer_values(await collect(source, item.request))}
            except Busy as error:
                await asyncio.sleep(error.retry_after_s)
    except HeadraceError as error:
        return {**head, "error": {"code": error.code, "message": error.message}}
