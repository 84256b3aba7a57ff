"""The help of every command: its width, its groups of options, and options that mean the same everywhere."""

from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from headrace.tools.cli.command import HelpfulCommand, help_row
from headrace.tools.cli.main import cli

from .cli_page import leaves

WIDTH = 80
LEAVES = list(leaves())
LONG = [leaf for leaf in LEAVES if leaf.command.common]
DIFFER = frozenset({
    *("--api-key", "--ignore-eos", "--json", "--output", "--region", "--replace", "--seed", "--system", "--target"),
    *("--timeout-s", "--url", "--variant", "--wait", "--min", "--max", "--model", "--instance-type"),
})  # fmt: skip
"""Options whose texts say what they are for in each command; so do all settings of `serve` and `up`."""


def pages() -> Iterator[tuple[str, ...]]:
    groups = {leaf.path[:1] for leaf in LEAVES if len(leaf.path) > 1}
    for path in [(), *sorted(groups), *(leaf.path for leaf in LEAVES), ("worker",)]:
        yield (*path, "--help")
    yield from ((*leaf.path, "--help-all") for leaf in LONG)


@pytest.mark.parametrize("page", list(pages()), ids=" ".join)
def test_help_fits_into_80_columns(headrace, page: tuple[str, ...]) -> None:
    for columns in ("80", "200"):
        shown = headrace(*page, env={"COLUMNS": columns}).stdout
        assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
        assert not any(line.rstrip().endswith("-") for line in shown.splitlines()), "a word is broken"
        assert not any(line.endswith("...") for line in shown.splitlines()[1:]), "a summary is cut"


def test_examples_come_first(headrace) -> None:
    for leaf in LEAVES:
        shown = headrace(*leaf.path, "--help").stdout
        usage, about, examples, *_ = shown.split("\n\n")
        assert usage.startswith("Usage: headrace")
        assert about.startswith("  ")
        assert examples.startswith(f"Examples:\n  {leaf.command.examples.splitlines()[0]}")


@pytest.mark.parametrize("leaf", LONG, ids=lambda leaf: leaf.path[0])
def test_help_shows_common_options_and_says_how_many_more_there_are(headrace, leaf) -> None:
    brief, whole = (headrace(*leaf.path, option).stdout for option in ("--help", "--help-all"))
    options = {option.name: option.opts[-1] for option in leaf.command.params if isinstance(option, click.Option)}
    more = options.keys() - leaf.command.common - {"help_all"}
    assert 8 <= len(leaf.command.common) <= 13
    assert len(brief.splitlines()) < 85
    assert brief.endswith(f"\n{len(more)} more options: headrace {leaf.path[0]} --help-all\n")
    assert "more options" not in whole
    for name, flag in options.items():
        spelling = flag.removeprefix("--")
        assert spelling in whole
        assert name in more | {"help_all"} or spelling in brief


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if leaf.command.groups], ids=lambda leaf: leaf.path[0])
def test_every_option_is_in_a_group(leaf) -> None:
    grouped = [name for names in leaf.command.groups.values() for name in names]
    options = {option.name for option in leaf.command.params if isinstance(option, click.Option)} - {"help_all"}
    assert options <= set(grouped)
    assert leaf.command.common <= options


def test_an_option_means_the_same_in_every_command() -> None:
    kinds, texts, shorts = (defaultdict[str, set](set) for _ in range(3))
    for leaf in LEAVES:
        for option in leaf.command.params:
            if isinstance(option, click.Option):
                name = max(option.opts, key=len)
                context = click.Context(leaf.command)
                kinds[name].add((option.make_metavar(context), option.is_flag, option.multiple, tuple(option.opts)))
                if leaf.path not in {("serve",), ("up",)}:
                    _, text = help_row(option, context)
                    texts[name].add(text.partition("  [")[0])
                for short in set(option.opts) - {name}:
                    shorts[short].add(name)
    # A key may have several models; all other commands are about one.
    assert {name: found for name, found in kinds.items() if len(found) > 1 and name != "--model"} == {}
    assert {found[:2] + found[3:] for found in kinds["--model"]} == {("NAME", False, ("--model",))}
    assert {short: found for short, found in shorts.items() if len(found) > 1} == {}
    assert {name for name, found in texts.items() if len(found) > 1} <= DIFFER
    assert (shorts["-n"], shorts["-p"], shorts["-o"]) == ({"--max-new-tokens"}, {"--prompt"}, {"--output"})


def test_defaults_and_ranges_are_in_words() -> None:
    @click.command(cls=HelpfulCommand, examples="x")
    @click.option("--wait-s", default=2.0, type=click.FloatRange(min=1), help="Wait.")
    @click.option("--share", type=click.FloatRange(min=0, min_open=True), help="Share.  [default: all]")
    @click.option("--kind", type=click.Choice(["one-of-them", "another-one"]), help="Kind.")
    @click.option("--way", type=click.Choice(["a", "b"]), help="Way.")
    @click.option("--on/--no-on", help="Switch.")
    def command() -> None:
        """Do something."""

    shown = command.get_help(click.Context(command))
    for words in (
        *("--wait-s SECONDS", "[default: 2; at least 1]", "[default: all; above 0]", "--kind KIND"),
        *("Kind.  [one of one-of-them, another-one]", "--way [a|b]", "--[no-]on"),
    ):
        assert words in shown


def test_the_list_of_commands_begins_with_what_to_type(headrace) -> None:
    shown = headrace().output
    assert shown == headrace("--help").stdout
    assert shown.index("Start here:\n  headrace serve smollm2") < shown.index("Serve and measure a model:")
    assert isinstance(cli, HelpfulCommand)
