"""A click command whose help begins with examples, groups the options and shows the rare ones only on request."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from headrace.serving.settings.values import near_name

_SHOWS_ALL = "headrace.help-all"
"""Key of the context's `meta` for `--help-all`."""
NAME_COLUMNS = 28
"""An option whose name and value are longer has them on a line of their own."""
_HYPHEN, _SPACE = "\ue000", "\ue001"
"""Stand for characters at which no line is broken (Unicode's private use area)."""
_CODE = re.compile(r"`[^`]{1,32}`")
_SYNONYMS = {
    "-p": ("--port", "--parameter"),
    "--ctx-size": ("--max-model-len",),
    "--gpu": ("--device",),
    "--gpus": ("--tensor-parallel-size", "--instance-type"),
    "--lines": ("--tail",),
    "--max-tokens": ("--max-new-tokens", "--max-model-len"),
    "--n-predict": ("--max-new-tokens",),
    "--quantization": ("--dtype",),
    "--raw": ("--completion",),
    "--temp": ("--temperature",),
    "--verbose": ("--log-level",),
}
"""Options of other programs, and what the same is here."""
_LIKE = 0.7
"""Similarity above which an option is suggested."""
_UNITS = {"s": "SECONDS", "mb": "MB"}
"""Units of options by the ends of their names."""
_WORDING = (
    (re.compile(r"\]  \["), "; "),
    (re.compile(r"([\d.]+)<=x<=([\d.]+)"), r"\1 to \2"),
    (re.compile(r"x>=([\d.]+)"), r"at least \1"),
    (re.compile(r"x>([\d.]+)"), r"above \1"),
    (re.compile(r"(default: \d+)\.0(?=[;\]])"), r"\1"),
    (re.compile(r" is not in the range "), "; expected "),
    (re.compile(r" is not one of "), "; expected one of "),
    (re.compile(r" is not a valid integer\."), "; expected a whole number."),
    (re.compile(r" is not a valid float\."), "; expected a number."),
)
"""What click writes about defaults, ranges and wrong values, and what we say."""


class WholeWordFormatter(click.HelpFormatter):
    """Breaks lines neither at hyphens, as in `--dtype`, nor within short commands and code."""

    def write_text(self, text: str) -> None:
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _unbroken(text)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-").replace(_SPACE, " ")


class WholeWordContext(click.Context):
    """A context that formats help by `WholeWordFormatter`."""

    formatter_class = WholeWordFormatter


class BriefOption(click.Option):
    """An option with a shorter text for `--help` of commands that have `--help-all`."""

    def __init__(self, *args: Any, brief: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.brief = brief


class HelpfulCommand(click.Command):
    """
    A command with examples and titled groups of options.

    If `common` names options, `--help` shows only these, and `--help-all` shows all.
    """

    context_class = WholeWordContext
    examples_title = "Examples"

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        groups: Mapping[str, Iterable[str]] | None = None,
        common: Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples.strip()
        self.groups = groups or {}
        self.common = frozenset(common)
        for option in self.params:
            if isinstance(option, click.Option):
                _complete(option)
        if self.common:
            flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _print_all}
            self.params.append(click.Option(["--help-all"], **flag, help="Show all options, and their variables."))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; errors say what is expected, and what may be meant by an unknown option."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            raise
        except click.BadParameter as error:
            message = _worded(error.message)
            raise click.BadParameter(message, error.ctx, error.param, error.param_hint) from None
        except click.NoSuchOption as error:
            flag = error.option_name
            raise click.UsageError(f"No such option '{flag}'. {self._hint(flag)}", ctx) from None

    def _hint(self, flag: str) -> str:
        """Return what to use in place of an option that the command does not have."""
        flags = [name for option in self.params if isinstance(option, click.Option) for name in option.opts]
        arguments = [str(option.name) for option in self.params if isinstance(option, click.Argument)]
        word = flag.lstrip("-").replace("-", "_")
        if isinstance(self, click.Group):
            return "Options of a command follow its name, as in `headrace COMMAND --help`."
        if word in arguments:
            return f"{word.upper()} is an argument: give it without the option's name."
        synonym = next((name for name in _SYNONYMS.get(flag, ()) if name in flags), None)
        near = synonym or near_name(flag, [name for name in flags if name.startswith("--")], cutoff=_LIKE)
        return f"Did you mean {near}?" if near else f"--help{'-all' if self.common else ''} lists the options."

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the first paragraph, the examples, and the other paragraphs."""
        first, *others = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(first)
        with formatter.section(self.examples_title):
            indent = " " * formatter.current_indent
            formatter.write("".join(f"{indent}{line}\n" for line in self.examples.splitlines()))
        if others:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text("\n\n".join(others))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, all of them or the common ones."""
        shown = {str(option.name): row for option in self.get_params(ctx) if (row := help_row(option, ctx)) is not None}
        num_more = 0
        if self.common and not ctx.meta.get(_SHOWS_ALL):
            options = {str(option.name): option for option in self.params if option.name in shown}
            num_more = len(options.keys() - self.common - {"help_all"})
            shown = {name: _brief_row(options[name], shown[name]) for name in options if name in self.common}
        width = min(max(map(len, (name for name, _ in shown.values()))), NAME_COLUMNS)
        grouped = {name for names in self.groups.values() for name in names}
        rest = [name for name in shown if name not in grouped]
        for title, names in {**self.groups, "Help" if self.groups else "Options": rest}.items():
            rows = [shown.pop(name) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows], col_max=width)
        if num_more:
            formatter.write_paragraph()
            formatter.write_text(f"{num_more} more options: {ctx.command_path} --help-all")


def help_row(option: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """Return the names of an option and its text; None for an argument or a hidden option."""
    found = option.get_help_record(ctx) if isinstance(option, click.Option) else None
    if found is None:
        return None
    names, text = found
    return re.sub(r"--(\S+) / --no-\1$", r"--[no-]\1", names), _worded(text)


def _unbroken(text: str) -> str:
    kept = _CODE.sub(lambda code: code[0].replace(" ", _SPACE), text)
    return re.sub(r"(?<=\S)-(?=\w)", _HYPHEN, kept)


def _brief_row(option: click.Parameter, row: tuple[str, str]) -> tuple[str, str]:
    return (row[0], _worded(option.brief)) if isinstance(option, BriefOption) else row


def _worded(text: str) -> str:
    for pattern, words in _WORDING:
        text = pattern.sub(words, text)
    return text


def _complete(option: click.Option) -> None:
    """Set the placeholder of an option's value, and whether its default is shown."""
    if option.show_default is None:
        option.show_default = isinstance(option.default, int | float | str) and option.default != ""
    if option.metavar is None:
        option.metavar = _placeholder(option)
        if isinstance(option.type, click.Choice) and option.metavar is not None:
            option.help = f"{option.help}  [one of {', '.join(option.type.choices)}]"


def _placeholder(option: click.Option) -> str | None:
    """Return the unit of an option's number, else `N` or `NUMBER`; None where click's own is good."""
    name, kind = str(option.name), option.type
    if isinstance(kind, click.Choice):
        return placeholder_of(option.opts[-1], kind.choices)
    is_whole = isinstance(kind, click.types.IntParamType)
    if option.is_flag or option.count or not (is_whole or isinstance(kind, click.types.FloatParamType)):
        return None
    unit = _UNITS.get(name.rpartition("_")[2]) if "_" in name else None
    return unit or ("N" if is_whole else "NUMBER")


def placeholder_of(flag: str, choices: Sequence[str]) -> str | None:
    """Return the value's name for an option whose choices do not fit beside its flag; None if they do."""
    return None if len(f"{flag} [{'|'.join(choices)}]") <= NAME_COLUMNS else flag.rpartition("-")[2].upper()


def _print_all(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
