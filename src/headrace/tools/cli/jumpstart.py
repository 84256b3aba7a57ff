"""`headrace jumpstart`: the models that JumpStart's ids name on a platform."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.serving.settings.platform_settings import data_folder, load_platform_settings
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import HelpfulGroup, UserFailed, all_of
from headrace.tools.cli.platform_client import data_dir_option
from headrace.tools.cli.tables import table

if TYPE_CHECKING:
    from headrace.platform.control.jumpstart.catalogue import CatalogueRow

EXAMPLES = """
headrace jumpstart ls llama                        ids with this word
headrace jumpstart add my-model --model smollm2    a new id
headrace jumpstart add deepseek-llm-r1 --model /models/r1
"""
_SERVERS = ("tgi", "lmi", "embedding")


@click.group(cls=HelpfulGroup, examples=EXAMPLES, renamed={"list": "ls"})
def jumpstart() -> None:
    """List and add the model ids of JumpStart, by which SDKs deploy."""


file_options = all_of(
    [
        data_dir_option,
        click.option(
            "--file", type=click.Path(path_type=Path), help="The file of rows.  [default: in the data folder]"
        ),
    ]
)


@jumpstart.command("ls", cls=HelpfulCommand, examples="headrace jumpstart ls\nheadrace jumpstart ls mistral --json")
@click.argument("word", default="")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@file_options
def list_models(*, word: str, as_json: bool, data_dir: Path | None, file: Path | None) -> None:
    """List the ids that contain WORD, and the model that Headrace serves for each; `*` marks your own rows."""
    from headrace.platform.control.jumpstart.catalogue import open_catalogue

    rows = [
        row for row in open_catalogue(*_files(data_dir, file)).rows.values() if word.lower() in row.model_id.lower()
    ]
    rows.sort(key=lambda row: row.model_id)
    if as_json:
        click.echo(json.dumps([{"id": row.model_id, **_facts(row)} for row in rows]))
        return
    if not rows:
        click.echo(f"No id contains {word!r}.", err=True)
        return
    shown = [
        (f"{row.model_id}{' *' * row.is_own}", row.version, row.server, "yes" if row.gated else "", row.model or "-")
        for row in rows
    ]
    click.echo(table([("ID", "VERSION", "SERVER", "EULA", "MODEL"), *shown]))


@jumpstart.command(cls=HelpfulCommand, examples=EXAMPLES.split("\n", 2)[2])
@click.argument("model_id", metavar="ID")
@click.option("--model", metavar="NAME", required=True, help="A Hub id, an alias, an S3 prefix or a local path.")
@click.option("--server", type=click.Choice(_SERVERS), help="The container, and with it the schema of requests.")
@click.option("--version", help="The newest version.  [default: that of the id, or 1.0.0]")
@click.option("--instance-type", metavar="TYPE", help="The default of the SDK.")
@click.option("--gated", is_flag=True, default=None, help="Require `accept_eula`.")
@file_options
def add(*, model_id: str, model: str, data_dir: Path | None, file: Path | None, **given: Any) -> None:
    """
    Add ID to the user's file, or replace its row; what you do not give stays as it is for a known id.

    A running platform reads the file again.
    """
    from headrace.platform.control.jumpstart.catalogue import open_catalogue, read_rows

    named, default = _files(data_dir, file)
    path = named or default
    known = open_catalogue(named if named and named.exists() else None, default).rows.get(model_id)
    facts: dict[str, Any] = {} if known is None or known.is_marketplace else _facts(known)
    facts |= {name: value for name, value in given.items() if value is not None} | {"model": _located(model)}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    others = [line for line in text.splitlines() if not re.match(rf"{re.escape(model_id)}\s*=", line)]
    text = "\n".join([_row(model_id, facts), *others]) + "\n"
    read_rows(text, source=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)  # as all files of a platform: its environment may have tokens
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    click.echo(f"{model_id} is {facts['model']} in {path}.")


def _files(data_dir: Path | None, file: Path | None) -> tuple[Path | None, Path]:
    """Return the file that a flag or a setting names, and the one in the data folder."""
    from headrace.platform.host.folders import DataFolder

    settings = load_platform_settings({"data_dir": data_dir, "jumpstart": file}, os.environ)
    return settings.jumpstart, DataFolder(data_folder(settings, os.environ)).jumpstart


def _facts(row: "CatalogueRow") -> dict[str, Any]:
    facts = {name: getattr(row, name) for name in ("model", "server", "version", "oldest", "instance_type", "gated")}
    return {**facts, "environment": dict(row.environment)}


def _located(model: str) -> str:
    """Return a path as an absolute one. Raises `UserFailed` if it does not exist."""
    path = Path(model).expanduser()
    if path.exists():
        return str(path.absolute())
    if model.startswith(("/", ".", "~")):
        raise UserFailed(f"{model} does not exist. Name a Hub id, an alias, an S3 prefix or a path that exists.")
    return model


def _row(model_id: str, facts: dict[str, Any]) -> str:
    """Return the line of a row. Strings of JSON are strings of TOML."""
    parts = [f"{name} = {_value(value)}" for name, value in facts.items() if name != "environment" or value]
    return f"{model_id} = {{ {', '.join(parts)} }}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_value(name)} = {_value(text)}' for name, text in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
