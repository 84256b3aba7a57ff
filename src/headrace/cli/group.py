"""
A click group that imports commands on first use and maps errors to exit codes.

Exit codes: 0 success; 1 failure (server down, engine failed, a bug); 2 an error that the caller can fix (a flag, a
model name, not enough memory); 130 Ctrl-C. An error is one sentence on stderr; `--debug` adds the traceback.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from headrace.core.errors import HeadraceError, UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


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


class UserFailed(Failed):
    """A failure that the caller can fix; exit code 2."""

    exit_code = EXIT_USER_ERROR


class HelpfulGroup(click.Group):
    """A group that suggests the nearest command for an unknown name, and whose help ends with examples."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(names)}."
            raise click.UsageError(f"No such command '{name}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        write_examples(self.examples, formatter)


class LazyGroup(HelpfulGroup):
    """A group that imports a command's module when the command runs or its help is requested."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the table."""
        return [name for name, entry in self.entries.items() if not entry.is_hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table, and options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.entries[name].summary) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.entries[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise _failure(error, ctx) from error
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
    if isinstance(error, OSError):
        return Failed(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    kind = type(error).__name__
    return Failed(f"Unexpected error ({kind}: {error}). Run with --debug for the traceback.")


class Examples(click.Command):
    """A command whose help ends with examples, printed verbatim."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    """Write the examples below their own heading."""
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")
