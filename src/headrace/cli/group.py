"""
A click group whose commands are imported when they are used, and which ends every command in one of four ways.

Exit codes: 0 it worked; 1 it could not be done (server down, engine failed, a bug); 2 the caller can fix it (a flag,
a model name, not enough memory); 130 Ctrl-C. What went wrong is one sentence on stderr; `--debug` adds the traceback.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from headrace.core.errors import HeadraceError, UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lies, and its line in the list of commands (so that the list imports nothing)."""

    module: str
    attribute: str
    summary: str
    is_hidden: bool = False
    """For programs: not in lists."""


class Failed(click.ClickException):
    """It could not be done, in one sentence."""

    exit_code = EXIT_FAILED


class UserFailed(Failed):
    """It could not be done, and the caller can fix it."""

    exit_code = EXIT_USER_ERROR


class HelpfulGroup(click.Group):
    """Names the nearest command when there is none of the name that was typed; its help ends with examples."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}."
            raise click.UsageError(f"No such command '{name}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        write_examples(self.examples, formatter)


class LazyGroup(HelpfulGroup):
    """Imports a command's module when that command is run or asked for its help."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table."""
        return [name for name, entry in self.entries.items() if not entry.is_hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.entries[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes one sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise _told(error, ctx) from error
            raise
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:
            raise _told(error, ctx) from error


def _told(error: Exception, ctx: click.Context) -> Failed:
    """The sentence for an error; with `--debug` its traceback is printed first."""
    if ctx.params.get("debug"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, HeadraceError):
        return (UserFailed if isinstance(error, UserError) else Failed)(error.message)
    if isinstance(error, OSError):
        return Failed(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    kind = type(error).__name__
    return Failed(f"Something broke that should not ({kind}: {error}). Run with --debug for where.")


class Examples(click.Command):
    """A command whose help ends with examples, shown as they are written."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    """Lines of a command and what it does, below a head of their own."""
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")
