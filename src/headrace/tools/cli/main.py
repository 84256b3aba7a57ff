"""
The `headrace` command, its list of commands, and the commands about them: `help` and `completion`.

Heavy modules are imported only by the command that needs them.
"""

import click

from headrace import __version__
from headrace.core.threads import collect_seldom
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import Entry, LazyGroup

SECTIONS: dict[str, dict[str, Entry]] = {
    "Serve and measure a model": {
        "serve": Entry("headrace.tools.cli.serve", "serve", "Serve a model over HTTP."),
        "chat": Entry("headrace.tools.cli.chat", "chat", "Talk to a model in the terminal."),
        "generate": Entry(
            "headrace.tools.cli.generate", "generate", "Continue a prompt, or a file of prompts, without a server."
        ),
        "bench": Entry("headrace.tools.cli.bench", "bench", "Measure a running server under load."),
    },
    "Models and memory": {
        "models": Entry("headrace.tools.cli.models", "models", "List, download and remove models on this machine."),
        "fit": Entry("headrace.tools.cli.fit", "fit", "Calculate the memory that a model needs, and if it fits here."),
        "quantize": Entry("headrace.tools.cli.quantize", "quantize", "Quantize a model to 8 or 4 bits into a folder."),
        "doctor": Entry("headrace.tools.cli.doctor", "doctor", "Check what this machine can do and what is missing."),
    },
    "Local SageMaker": {
        "up": Entry("headrace.tools.cli.up", "up", "Run a local SageMaker."),
        "status": Entry("headrace.tools.cli.status", "status", "Show the state of the platform, or wait for it."),
        "env": Entry("headrace.tools.cli.env", "env", "Point this shell at a platform."),
        "jumpstart": Entry("headrace.tools.cli.jumpstart", "jumpstart", "List and add JumpStart's model ids."),
        "keys": Entry("headrace.tools.cli.store", "keys", "Create, list and delete access keys."),
        "backup": Entry("headrace.tools.cli.store", "backup", "Copy a platform's records and objects into a file."),
        "restore": Entry("headrace.tools.cli.store", "restore", "Restore a platform from a backup."),
        "down": Entry("headrace.tools.cli.down", "down", "Stop the platform on this machine."),
    },
    "Endpoints": {
        "deploy": Entry("headrace.tools.cli.deploy", "deploy", "Deploy a model as an endpoint."),
        "ls": Entry("headrace.tools.cli.endpoints", "list_endpoints", "List endpoints."),
        "describe": Entry("headrace.tools.cli.endpoints", "describe", "Show an endpoint or an inference component."),
        "invoke": Entry("headrace.tools.cli.invoke", "invoke", "Send a request to an endpoint."),
        "logs": Entry("headrace.tools.cli.logs", "logs", "Print the logs of an endpoint's workers."),
        "scale": Entry("headrace.tools.cli.scale", "scale", "Scale an endpoint automatically with its load."),
        "simulate": Entry(
            "headrace.tools.cli.simulate", "simulate_day", "Simulate a scaling policy on a trace of requests."
        ),
        "rm": Entry("headrace.tools.cli.removal", "rm", "Delete endpoints and inference components."),
    },
    "Help": {
        "help": Entry("headrace.tools.cli.main", "show_help", "Show the help of a command."),
        "completion": Entry("headrace.tools.cli.main", "completion", "Print a script for completion in a shell."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()} | {
    "worker": Entry("headrace.tools.cli.worker", "worker", "Run one worker, for `headrace up`.", is_hidden=True),
}

SYNONYMS = {
    "create": "deploy",
    "delete": "rm",
    "list": "ls",
    "ps": "ls",
    "pull": "models pull",
    "run": "chat",
    "start": "up",
    "stop": "down",
}
"""Names in other programs, such as Docker and Ollama."""

EXAMPLES = """
headrace serve smollm2     a model server on http://127.0.0.1:8080
headrace chat smollm2      a conversation in the terminal, without a server
headrace up                a local SageMaker on http://127.0.0.1:7450
headrace doctor            what this machine can do, and what is missing
"""
COMPLETION_EXAMPLES = """
eval "$(headrace completion bash)"     in this shell, or as a line of .bashrc
eval "$(headrace completion zsh)"      the same for .zshrc
headrace completion fish > ~/.config/fish/completions/headrace.fish
"""


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    sections=SECTIONS,
    synonyms=SYNONYMS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="headrace")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
def cli(*, debug: bool) -> None:
    """
    An OpenAI-compatible model server and a local SageMaker in one package.

    `headrace COMMAND --help` explains a command, with examples first.
    """


@click.command("help", cls=HelpfulCommand, examples="headrace help\nheadrace help deploy\nheadrace help models pull")
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


@click.command(cls=HelpfulCommand, examples=COMPLETION_EXAMPLES)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, /, *, shell: str) -> None:
    """Print a script by which SHELL completes the commands and options of headrace."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's shells"
    click.echo(kind(ctx.find_root().command, {}, "headrace", "_HEADRACE_COMPLETE").source())


def main() -> None:
    collect_seldom()
    cli(prog_name="headrace")


if __name__ == "__main__":
    main()
