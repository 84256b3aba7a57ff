"""
A click group that imports commands on first use and maps errors to exit codes.

Exit codes: 0 success; 1 failure (server down, engine failed, a bug); 2 an error that the caller can fix (a flag, a
model name, not enough memory); 130 Ctrl-C. An error is one sentence on stderr; `--debug` adds the traceback.
"""

import errno
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from headrace.core.client_text import printable
from headrace.core.errors import HeadraceError, UserError
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.tables import wrapped

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
_MAX_SUMMARY = 500

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

AT_LEAST_0, AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)
ABOVE_0 = click.FloatRange(min=0, min_open=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """The location of a command and its line in the list of commands, which is printed without importing it."""

    module: str
    attribute: str
    summary: str
    is_hidden: bool = False
    """Meant for programs: left out of lists."""


class Failed(click.ClickException):
    """A failure with a one-sentence message; exit code 1."""

    exit_code = EXIT_FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, on a terminal wrapped between words."""
        stream = file or sys.stderr
        click.echo(
            "\n".join(wrapped(line, stream=stream) for line in f"Error: {printable(self.message)}".split("\n")), stream
        )


class UserFailed(Failed):
    """A failure that the caller can fix; exit code 2."""

    exit_code = EXIT_USER_ERROR


def all_of(options: Iterable[Decorator]) -> Decorator:
    """Join the decorators of options into one; the help lists them in this order."""
    decorators = list(options)
    return lambda command: reduce(lambda decorated, add: add(decorated), reversed(decorators), command)


class HelpfulGroup(HelpfulCommand, click.Group):
    """
    A group that suggests the nearest command for an unknown name.

    `renamed` maps old names of commands, which work with a notice, to the new ones; `synonyms` maps names in other
    programs to what a message suggests.
    """

    def __init__(
        self,
        *args: Any,
        renamed: Mapping[str, str] | None = None,
        synonyms: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = renamed or {}
        self.synonyms = synonyms or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command by its name or its old one, or suggest the nearest one."""
        name, names = args[0], self.list_commands(ctx)
        if (new := self.renamed.get(name)) is not None:
            group = ctx.command_path
            click.echo(f"`{group} {name}` is `{group} {new}` now; the next release removes the old name.", err=True)
            return super().resolve_command(ctx, [new, *args[1:]])
        if name not in names and not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = [self.synonyms[name]] if name in self.synonyms else get_close_matches(name, names, n=1)
            hint = f"Did you mean `{ctx.command_path} {near[0]}`?" if near else f"Commands: {', '.join(names)}."
            raise click.UsageError(f"No such command '{name}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first sentence of each; click cuts it."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(_MAX_SUMMARY)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(HelpfulGroup):
    """A group that imports a command's module when the command runs or its help is requested."""

    examples_title = "Start here"

    def __init__(
        self, *args: Any, entries: Mapping[str, Entry], sections: Mapping[str, Iterable[str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name, entry in self.entries.items() if not entry.is_hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.entries[name].summary) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", self.entries[name].summary) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):  # click's to handle
            raise
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:
            raise _failure(error, ctx) from error


def _failure(error: Exception, ctx: click.Context) -> Failed:
    """Convert an error to a message with an exit code; with `--debug` print its traceback first."""
    if ctx.params.get("debug"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, HeadraceError):
        return (UserFailed if isinstance(error, UserError) else Failed)(error.message)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" for {error.filename}" if error.filename else ""
        return Failed(f"There is no space left on the disk{place}. Free some, or choose a folder on another disk.")
    if isinstance(error, OSError):
        return Failed(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    kind = type(error).__name__
    return Failed(f"Unexpected error ({kind}: {error}). `headrace --debug COMMAND` shows the traceback.")
