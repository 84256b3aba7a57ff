"""The page of the docs about the command line, from the command tree; `docs.py` writes it."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from headrace.tools.cli.command import BriefOption, HelpfulCommand, help_row
from headrace.tools.cli.main import cli

INTRO = """\
# The command line

Look up what each command does and which options it has.
In a terminal, `headrace COMMAND --help` shows examples and the common options;
for long commands, `--help-all` shows the others.

- Name a model by an alias (`smollm2`), a Hub id (`Qwen/Qwen3-0.6B`), a folder or a `.gguf` file;
  see [models](models.md).
- An option means the same in every command: `-p` is the prompt, `-n` the maximum of new tokens, `-o` the output file.
- You can pipe the output: the result of a command goes to standard output,
  and everything else (progress, figures, errors) to standard error.
- Exit codes: 0 success; 1 failure (a server is down, the engine failed, a bug);
  2 an error that you can fix (an option, a model's name, too little memory); 130 Ctrl-C.
- An error is one sentence. `headrace --debug COMMAND` adds the traceback.
- `HEADRACE_HOME` names the folder for downloads and packed weights (by default `~/.cache/headrace`).
"""

NOTES = {
    "up": "[The platform](platform.md) explains what it runs and stores, and which credentials it requires.",
    "env": "[The platform](platform.md#point-a-shell-at-it) explains each variable.",
    "quantize": "[Quantizing a model](quantize.md) explains the method, the gains and which programs load the folder.",
    "chat": (
        "In the conversation `/reset`, `/system TEXT`, `/stats`, `/help` and `/exit` are commands;\n"
        "Ctrl-C stops an answer, not the program.\n"
        'A message of several lines begins and ends with `"""`; a text pasted into a terminal is one message\n'
        "(with GNU readline; where Python is built with libedit, put it between the quotes).\n"
        "A model cannot send control characters to the terminal.\n"
        "A base model, which has no chat template, continues each text that you enter.\n"
        "stderr says when an answer was cut, because it reached `--max-new-tokens` or repeated itself."
    ),
    "generate": (
        "A line of the input file is an object with `prompt` (a string) or `messages` (a chat),\n"
        "optionally `id`, and any sampling option by its name with underscores (`max_new_tokens`, `stop`, `seed`, …)\n"
        'or `grammar` (`{"kind": "regex", "text": "[0-9]+"}`).\n'
        "A line of the output has `index`, `id`, `text`, `finish_reason`, `prompt_tokens`, `output_tokens`,\n"
        "`cached_tokens` and `seed`, or `error` with `code` and `message`.\n"
        "`finish_reason` is `eos_token`, `stop_sequence`, `length`, or `repetition` (the answer repeated itself).\n"
        "With `--url` each of `--num-answers` answers is a request of its own; with `--seed` each has the next seed.\n"
        "The answer to a chat has its reasoning, if there is any, in `reasoning` instead of `text`;\n"
        "without `--json` a terminal shows it dimmed, and a file or pipe gets only the content.\n"
        "The output is in the order of the input, so `--resume` continues after the last line of the output.\n"
        "Greedy answers do not depend on the rest of the batch, so a resumed run gives the same file."
    ),
}
"""Notes that are too long for the help of a command."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command without subcommands, and its full name."""

    path: tuple[str, ...]
    command: click.Command


def leaves(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every command below `command` in the order of the help."""
    if not isinstance(command, click.Group):
        yield Leaf(path, command)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from leaves(child, (*path, name))


def cli_page() -> Iterator[str]:
    """Yield the lines of `docs/cli.md`."""
    yield INTRO
    for leaf in leaves():
        yield from _section(leaf)


def _section(leaf: Leaf) -> Iterator[str]:
    name = " ".join(leaf.path)
    arguments = " ".join(_argument(parameter) for parameter in leaf.command.params if _is_argument(parameter))
    first, *others = inspect.cleandoc(leaf.command.help or "").split("\n\n")
    yield f"## headrace {name}\n"
    yield f"`headrace {name} [OPTIONS] {arguments}".rstrip() + "`\n"
    yield _sentences(first)
    if isinstance(leaf.command, HelpfulCommand):
        yield f"\n```text\n{leaf.command.examples}\n```\n"
    for text in [*map(_sentences, others), *filter(None, [NOTES.get(name)])]:
        yield f"{text}\n"
    yield from _options(leaf.command, name)


def _options(command: click.Command, name: str) -> Iterator[str]:
    """Yield a table of the options, and the names of those that are settings of a server."""
    context = click.Context(command)
    shown = {option: row for option in command.params if (row := help_row(option, context)) is not None}
    settings = [option.opts[0] for option in shown if isinstance(option, BriefOption)]
    rows = [row for option, row in shown.items() if option.opts[0] not in [*settings, "--help-all"]]
    if rows:
        yield "| option | meaning |"
        yield "|---|---|"
        for row in rows:
            names, meaning = (text.replace("|", "\\|") for text in row)
            yield f"| `{names}` | {meaning} |"
        yield ""
    if name == "serve":
        yield "Its other options are the [settings](settings.md).\n"
    elif name == "up":
        yield "Its other options are the [settings of the platform](settings.md#settings-of-the-platform).\n"
    elif settings:
        yield f"These [settings](settings.md) are options too: {', '.join(f'`{flag}`' for flag in settings)}.\n"


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def _argument(parameter: click.Parameter) -> str:
    name = (parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def _sentences(paragraph: str) -> str:
    """Reflow a paragraph to one sentence per line, with links to pages."""
    linked = re.sub(r"docs/([\w/-]+)\.md", r"[\1](\1.md)", " ".join(paragraph.split()))
    return linked.replace(". ", ".\n")
