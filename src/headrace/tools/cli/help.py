"""`headrace help` and `headrace completion`: the commands about the commands."""

import click

from headrace.tools.cli.group import Examples

COMPLETION_EXAMPLES = """
eval "$(headrace completion bash)"                                             this shell, or a line of ~/.bashrc
eval "$(headrace completion zsh)"                                              the same for ~/.zshrc
headrace completion fish > ~/.config/fish/completions/headrace.fish
"""


@click.command("help", cls=Examples, examples="headrace help\nheadrace help deploy\nheadrace help models pull")
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, /, *, command: tuple[str, ...]) -> None:
    """Print the help of COMMAND, or the list of commands."""
    assert ctx.parent is not None, "a command of a group"
    found = ctx.parent
    rest = list(command)
    while rest:
        if not isinstance(found.command, click.Group):
            raise click.UsageError(f"{found.command_path} has no command '{rest[0]}'.", found)
        name, child, rest = found.command.resolve_command(found, rest)
        assert child is not None, "an unknown name is refused"
        found = child.make_context(name, [], parent=found, resilient_parsing=True)
    click.echo(found.get_help())


@click.command(cls=Examples, examples=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, /, *, shell: str) -> None:
    """Print a script by which SHELL completes the commands and options of headrace."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's shells"
    click.echo(kind(ctx.find_root().command, {}, "headrace", "_HEADRACE_COMPLETE").source())
