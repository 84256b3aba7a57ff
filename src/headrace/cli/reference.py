"""The command tree as data, and the page of the docs that is made from it."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from headrace.cli.group import Examples
from headrace.cli.main import cli

INTRO = """\
# The command line

Every command explains itself: `headrace COMMAND --help` lists its options with examples.

- What a command makes goes to standard output, everything else (progress, figures, errors) to standard error,
  so that output can be piped.
- An error is one sentence. `headrace --debug COMMAND` adds the traceback.
- Exit codes: 0 it worked; 1 it could not be done (a server that is down, an engine that failed, a bug);
  2 the caller can fix it (a flag, a model's name, too little memory); 130 Ctrl-C.
- A model is named by an alias (`smollm2`), a Hub id (`Qwen/Qwen3-0.6B`), a folder or a `.gguf` file;
  [models](models.md) has the details.
- Downloads and packed weights lie in `HEADRACE_HOME` (by default `~/.cache/headrace`).
"""

NOTES = {
    "serve": "Its options are the [settings](settings.md); each has an environment variable too.",
    "up": (
        "Its options are the [settings of the platform](settings.md#settings-of-the-platform).\n"
        "[The platform](platform.md) explains what it does, keeps and wants."
    ),
    "env": "[The platform](platform.md#point-a-shell-at-it) says what each variable is for.",
    "quantize": "[Quantising a model](quantize.md) explains what it does, what it gains and who reads the folder.",
    "bench": "[Measuring a server](bench.md) explains the method, the figures and their limits.",
    "chat": (
        "In the conversation `/reset`, `/system TEXT`, `/stats`, `/help` and `/exit` are commands;\n"
        "Ctrl-C stops an answer, not the program.\n"
        "A model cannot send control characters to the terminal."
    ),
    "generate": (
        "A line of the input file is an object with `prompt` (a text) or `messages` (a chat),\n"
        "optionally `id`, and any sampling option by its name with underscores (`max_new_tokens`, `stop`, `seed`, …)\n"
        'or `grammar` (`{"kind": "regex", "text": "[0-9]+"}`).\n'
        "A line of the output has `index`, `id`, `text`, `finish_reason`, `prompt_tokens`, `output_tokens`,\n"
        "`cached_tokens` and `seed`, or `error` with `code` and `message`.\n"
        "The output has the order of the input, so `--resume` knows what is done: as many lines as there are.\n"
        "Greedy answers do not depend on what else is in the batch, so a run that was resumed gives the same file."
    ),
}
"""What the help of a command has no room for."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command that does something."""

    path: tuple[str, ...]
    command: click.Command


def leaves(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every command below `command`, in the order of the help."""
    if not isinstance(command, click.Group):
        yield Leaf(path, command)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from leaves(child, (*path, name))


def cli_page() -> Iterator[str]:
    """The lines of `docs/cli.md`."""
    yield INTRO
    for leaf in leaves():
        yield from _section(leaf)


def _section(leaf: Leaf) -> Iterator[str]:
    name = " ".join(leaf.path)
    arguments = " ".join(_argument(parameter) for parameter in leaf.command.params if _is_argument(parameter))
    yield f"## headrace {name}\n"
    yield f"`headrace {name} [OPTIONS] {arguments}".rstrip() + "`\n"
    yield _sentences(inspect.cleandoc(leaf.command.help or ""))
    if isinstance(leaf.command, Examples):
        yield "\n```text\n" + inspect.cleandoc(leaf.command.examples) + "\n```\n"
    note = NOTES.get(name)
    if note is not None:
        yield note + "\n"
    if name not in {"serve", "up"}:
        yield from _options(leaf.command)


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    yield "| option | meaning |"
    yield "|---|---|"
    for parameter in command.params:
        record = None if _is_argument(parameter) else parameter.get_help_record(context)
        if record is not None:
            names, meaning = (text.replace("|", "\\|").replace("\n", " ") for text in record)
            yield f"| `{names}` | {meaning} |"
    yield ""


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def _argument(parameter: click.Parameter) -> str:
    name = (parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def _sentences(text: str) -> str:
    """One sentence a line, paragraphs kept."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(paragraph.replace(". ", ".\n") for paragraph in paragraphs)
