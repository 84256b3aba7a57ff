"""`headrace models`: list, download and remove models on this machine."""

import json
import os
from pathlib import Path

import click

from headrace.core.errors import ModelNotFound
from headrace.core.sizes import format_size
from headrace.inference.models.aliases import ALIASES
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import HelpfulGroup
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.setting_options import revision_option
from headrace.tools.cli.tables import count_of, table

EXAMPLES = """
headrace models ls               list stored models with their sizes
headrace models pull smollm2     download a model before it is needed
headrace models rm smollm2       free disk space
headrace models path smollm2     print the path of a model
"""


def _home() -> Path:
    from headrace.inference.models.sources import home_folder

    return home_folder(os.environ)


@click.group(cls=HelpfulGroup, examples=EXAMPLES, renamed={"list": "ls", "remove": "rm"})
def models() -> None:
    """List, download and remove models on this machine."""


@models.command("ls", cls=HelpfulCommand, examples="headrace models ls\nheadrace models ls --json | jq -r '.[].path'")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with the path of each.")
def list_models(*, as_json: bool) -> None:
    """
    List what is stored: models from the package index, from S3, from the Hugging Face Hub, and packed weights.

    Headrace writes packed weights at a model's first start, so that later starts are faster. You can remove them at any
    time.
    """
    from headrace.inference.models import store

    stored = store.list_models(_home())
    if as_json:
        rows = [{"name": m.name, "kind": m.kind, "bytes": m.num_bytes, "path": str(m.path)} for m in stored]
        click.echo(json.dumps(rows))
        return
    if stored:
        shown: list[tuple[str, ...]] = [
            (model.name, model.kind, format_size(model.num_bytes)) for model in stored if model.kind != "packed"
        ]
        packed = [model.num_bytes for model in stored if model.kind == "packed"]
        if packed:  # one row for all, which are removed together
            shown.append(("packed", count_of(len(packed), "file"), format_size(sum(packed))))
        click.echo(table([("NAME", "KIND", "SIZE"), *shown]))
        total = format_size(sum(model.num_bytes for model in stored))
        click.echo(f"{total} in {_home()} and the Hub's cache.", err=True)
    else:
        click.echo("No model is stored.", err=True)
    available = [alias for alias in ALIASES.values() if alias.name not in {model.name for model in stored}]
    if available:
        offered = [(alias.name, format_size(alias.stored_bytes), alias.title) for alias in available]
        click.echo("\n" + table([("AVAILABLE", "SIZE", "MODEL"), *offered]))


@models.command(
    cls=HelpfulCommand,
    examples="headrace models pull smollm2\nheadrace models pull Qwen/Qwen3-0.6B --revision main",
)
@click.argument("model")
@revision_option
def pull(model: str, revision: str | None) -> None:
    """
    Download MODEL (an alias or a Hub id) if it is not stored yet, and print its path.

    HF_TOKEN, HF_HOME and HF_ENDPOINT work as in Hugging Face's programs.
    """
    from headrace.inference.models.sources import locate

    with showing_progress() as progress:
        located = locate(model, home=_home(), revision=revision, progress=progress)
    click.echo(located.path)


@models.command(cls=HelpfulCommand, examples="headrace models rm smollm2\nheadrace models rm packed --yes")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(name: str, *, yes: bool) -> None:
    """
    Delete a stored model by its NAME in the list; `packed` stands for all packed weights.

    `headrace-code` is what the code of models has downloaded for itself in its sandbox, and downloads again.
    It never deletes your own folders and files.
    """
    from headrace.inference.models.store import remove_model

    if not yes:
        click.confirm(f"Delete {name}?", abort=True, err=True)
    click.echo(f"{format_size(remove_model(name, home=_home()))} freed.")


@models.command(cls=HelpfulCommand, examples="headrace models path\nheadrace models path smollm2")
@click.argument("name", required=False)
def path(name: str | None) -> None:
    """Print the path of the stored model NAME, or of the folder of all models (HEADRACE_HOME)."""
    if name is None:
        click.echo(_home())
        return
    from headrace.inference.models.store import list_models

    for model in list_models(_home()):
        if model.name == name:
            click.echo(model.path)
            return
    raise ModelNotFound(f"No model called {name!r} is stored here. `headrace models ls` shows the stored models.")
