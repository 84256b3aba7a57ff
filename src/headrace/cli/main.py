"""The `headrace` command: which commands there are. Nothing heavy is imported before a command needs it."""

import click

from headrace import __version__
from headrace.cli.group import Entry, LazyGroup

COMMANDS = {
    "serve": Entry("headrace.cli.serve", "serve", "Serve a model over HTTP."),
    "chat": Entry("headrace.cli.chat", "chat", "Talk to a model in the terminal."),
    "generate": Entry(
        "headrace.cli.generate", "generate", "Continue a prompt, or a file of prompts, without a server."
    ),
    "bench": Entry("headrace.cli.bench", "bench", "Measure a running server under load."),
    "fit": Entry("headrace.cli.fit", "fit", "Work out what a model needs and whether it fits here."),
    "simulate": Entry("headrace.cli.simulate", "simulate_day", "Try a scaling policy on a day of requests."),
    "quantize": Entry("headrace.cli.quantize", "quantize", "Quantise a model to 8 bits, into a folder."),
    "models": Entry("headrace.cli.models", "models", "List, fetch and remove models on this machine."),
    "up": Entry("headrace.cli.up", "up", "Run a local SageMaker."),
    "env": Entry("headrace.cli.env", "env", "Point this shell at a platform."),
    "deploy": Entry("headrace.cli.deploy", "deploy", "Make an endpoint from a model."),
    "ls": Entry("headrace.cli.endpoints", "list_endpoints", "List endpoints."),
    "describe": Entry("headrace.cli.endpoints", "describe", "Show one endpoint."),
    "invoke": Entry("headrace.cli.invoke", "invoke", "Ask an endpoint."),
    "logs": Entry("headrace.cli.logs", "logs", "Show what an endpoint's workers wrote."),
    "scale": Entry("headrace.cli.scale", "scale", "Let an endpoint grow and shrink with its load."),
    "rm": Entry("headrace.cli.removal", "rm", "Delete endpoints and inference components."),
    "status": Entry("headrace.cli.endpoints", "status", "Say how the platform is."),
    "keys": Entry("headrace.cli.keys", "keys", "Make, list and remove access keys."),
    "doctor": Entry("headrace.cli.doctor", "doctor", "Check what this machine can do and what is missing."),
    "worker": Entry("headrace.cli.worker", "worker", "Run one worker, for `headrace up`.", is_hidden=True),
}

EXAMPLES = """
headrace serve smollm2                 a server on http://127.0.0.1:8080
headrace chat smollm2                  a conversation, no server needed
headrace bench http://127.0.0.1:8080   how fast is it under load?
headrace up                            a local SageMaker on http://127.0.0.1:7450
headrace COMMAND --help                every option, with examples
"""


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show where an error came from (a traceback), not only what it is.")
def cli(*, debug: bool) -> None:
    """Headrace turns a language model on disk into a fast, streaming endpoint on your own hardware."""


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="headrace")


if __name__ == "__main__":
    main()
