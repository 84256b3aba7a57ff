"""`headrace generate`: run a prompt, or a file of prompts, without a server."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import SettingsError
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.tools.cli.answers import (
    CONTINUES_TEXT,
    Answer,
    PartWriter,
    Stopwatch,
    answer_values,
    collect_shown,
    ending_note,
    write_text,
)
from headrace.tools.cli.batch import OrderedWriter, Totals, lines_done, parse_items, prompt_request, run_items
from headrace.tools.cli.group import Examples
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.sampling_options import MAX_NEW_TOKENS, sampling_options, sampling_params
from headrace.tools.cli.setting_options import ENGINE_SETTINGS, setting_options
from headrace.tools.cli.sources import Source, opened_source

EXAMPLES = """
headrace generate smollm2 -p "What is 2+2?"                    answer a question
headrace generate smollm2 -p "The sea is" --raw                continue a text
cat letter.txt | headrace generate smollm2 -p - -n 200         read the prompt from a pipe
headrace generate smollm2 -p "Hi" --json --logprobs 3          one JSON object on stdout
headrace generate smollm2 --input in.jsonl --output out.jsonl  a file of prompts, batched
"""

NUM_IN_FLIGHT = 128
"""Requests that a batch keeps in flight: twice the engine's default concurrency, so that its queue is never empty."""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model", required=False)
@click.option(
    "--prompt",
    "-p",
    metavar="TEXT",
    help="User message, or text to continue for a model without a chat template; - reads stdin.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as text, without the model's chat template.")
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
    "output_path",
    metavar="FILE",
    help="File for the answers, in the order of the input.  [default: stdout]",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run that wrote to --output.")
@click.option("--overwrite", is_flag=True, help="Replace the file --output.")
@click.option("--url", help="Use the server at this URL instead of loading a model.")
@click.option("--api-key", envvar="HEADRACE_API_KEY", help="API key for --url.  [env: HEADRACE_API_KEY]")
@sampling_options(max_new_tokens=MAX_NEW_TOKENS)
@setting_options(*ENGINE_SETTINGS)
@click.pass_context
def generate(ctx: click.Context, /, model: str | None, **options: Any) -> None:
    """
    Answer a prompt with MODEL: an alias (smollm2), a Hub id, a folder or a .gguf file.

    The prompt becomes a user message in the model's chat template. A model without one, and any model with --raw,
    continues it as text; so is a "prompt" of an --input file, which has "messages" for chats.

    The text is streamed to stdout, everything else goes to stderr. With --input, all prompts of a file run together
    (continuous batching); a line that fails produces a line with "error" and does not stop the others.
    """
    if (options["prompt"] is None) == (options["input_path"] is None):
        raise SettingsError("Give either a prompt (-p) or a file of prompts (--input).")
    if options["raw"] and (options["chat"] or options["system"]):
        raise SettingsError("--raw continues the prompt as text; it cannot be combined with --chat or --system.")
    sampling = sampling_params(options)
    job = (_single_job if options["input_path"] is None else _batch_job)(options, sampling)
    with opened_source(ctx, model, options) as (runner, source):
        job(runner, source)


Job = Callable[[asyncio.Runner, Source], None]
"""The work that remains when the source is ready."""


def _single_job(options: dict[str, Any], sampling: SamplingParams) -> Job:
    text = sys.stdin.read() if options["prompt"] == "-" else options["prompt"]
    if not text:
        raise SettingsError("The prompt is empty.")
    show = _show_json if options["as_json"] else _show_text

    def job(runner: asyncio.Runner, source: Source) -> None:
        prompt = _prompt(text, options, has_chat_template=source.info.has_chat_template)
        if source.info.is_base and not options["raw"] and isinstance(prompt, str):
            click.echo(f"{source.info.name} {CONTINUES_TEXT}", err=True)
        runner.run(show(source, prompt_request(prompt, sampling)))

    return job


def _prompt(text: str, options: dict[str, Any], *, has_chat_template: bool) -> str | ChatPrompt:
    """Return a chat if the model is trained for one or the options ask for it, else the text."""
    is_chat = options["chat"] or options["system"] or (has_chat_template and not options["raw"])
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
    """Say on stderr that an answer was cut or has no text."""
    note = ending_note(
        answer.finish,
        has_text=bool(answer.text),
        has_reasoning=bool(answer.reasoning),
        max_new_tokens=sampling.max_new_tokens,
        name="The answer" if sampling.n == 1 else f"Answer {answer.index + 1}",
    )
    if note is not None:
        hint = " It is trained for chats: try without --raw." if is_raw and not answer.text else ""
        click.echo(note + hint, err=True)


def _batch_job(options: dict[str, Any], sampling: SamplingParams) -> Job:
    """Read the input and find the unfinished items before a model is loaded."""
    path = options["input_path"]
    with nullcontext(sys.stdin) if path == "-" else Path(path).open(encoding="utf-8") as lines:
        items = list(parse_items(lines, sampling))
    output = None if options["output_path"] in {None, "-"} else Path(options["output_path"])
    num_done = 0
    if output is not None and output.exists() and not options["overwrite"]:
        if not options["resume"]:
            raise SettingsError(f"{output} exists. Pass --resume to continue it, or --overwrite to replace it.")
        num_done = lines_done(output, items)

    def job(runner: asyncio.Runner, source: Source) -> None:
        mode = "a" if num_done else "w"
        opened = nullcontext(sys.stdout) if output is None else output.open(mode, encoding="utf-8")
        with opened as file, showing_progress() as progress:
            totals = Totals(len(items), num_done)

            def on_done(row: dict[str, Any]) -> None:
                totals.add(row)
                progress("prompts", totals.num_done, totals.num_items, "prompts")

            writer = OrderedWriter(file, first=num_done)
            runner.run(run_items(source, items[num_done:], writer, num_in_flight=NUM_IN_FLIGHT, on_done=on_done))
        click.echo(totals.line(), err=True)

    return job
