"""`headrace keys`: manage the access keys in a platform's store, whether or not the platform is running."""

import json
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.serving.settings.platform_settings import data_folder, load_platform_settings
from headrace.tools.cli.group import Examples, HelpfulGroup, UserFailed, all_of
from headrace.tools.cli.tables import age, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.platform.host.access_keys import AccessKeys
    from headrace.platform.host.folders import DataFolder

EXAMPLES = """
headrace keys create --note "the CI machine"    create a key; its secret is shown once
headrace keys ls                                list the keys
headrace keys rm HRAK...                        delete a key
"""


@click.group(cls=HelpfulGroup, examples=EXAMPLES)
def keys() -> None:
    """Create, list and delete the access keys of a platform."""


store_options = all_of(
    [
        click.option("--data-dir", type=click.Path(path_type=Path), help="The platform's data folder."),
        click.option("--database", help="The platform's database, if it is not in the data folder."),
    ]
)
"""Adds the location of a platform's records."""


@keys.command(cls=Examples, examples='headrace keys create\nheadrace keys create --note "the CI machine"')
@click.option("--note", default="", help="Note on the purpose of the key.")
@store_options
def create(*, note: str, data_dir: Path | None, database: str | None) -> None:
    """
    Create a key and print it as the environment variables that AWS tools read.

    The secret is shown only once. OpenAI clients use it as their API key.
    """
    with opened_keys(data_dir, database) as access_keys:
        made = access_keys.create(note=note)
    click.echo(f"AWS_ACCESS_KEY_ID={made.key_id}\nAWS_SECRET_ACCESS_KEY={made.secret}")
    click.echo("Save the secret: it is shown only once.", err=True)


@keys.command("ls", cls=Examples, examples="headrace keys ls\nheadrace keys ls --json | jq -r '.[].key'")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@store_options
def list_keys(*, data_dir: Path | None, database: str | None, as_json: bool) -> None:
    """List the keys, without their secrets."""
    with opened_keys(data_dir, database) as access_keys:
        records = access_keys.list()
    if as_json:
        click.echo(json.dumps([{"key": k.key_id, "created_s": k.created_s, "note": k.note} for k in records]))
        return
    if not records:
        click.echo("There are no access keys. `headrace keys create` creates one.", err=True)
        return
    now = datetime.now(UTC)
    rows = [(key.key_id, age(datetime.fromtimestamp(key.created_s, UTC), now), key.note) for key in records]
    click.echo(table([("KEY", "AGE", "NOTE"), *rows]))


@keys.command(
    cls=Examples, examples="headrace keys rm HRAK0123456789ABCDEF\nheadrace keys rm HRAK0123456789ABCDEF --last"
)
@click.argument("key_id")
@click.option("--last", is_flag=True, help="Delete the key even if no other one is left.")
@store_options
def rm(*, key_id: str, last: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Delete a key; requests signed with it are refused from then on.

    The last key is kept without `--last`, because no request would be admitted without one.
    """
    from headrace.platform.state.records import LastRecord

    with opened_keys(data_dir, database) as access_keys:
        try:
            is_removed = access_keys.remove(key_id, keep_last=not last)
        except LastRecord:
            raise UserFailed(
                f"{key_id} is the last key; expected another one to be left. "
                "Create one with `headrace keys create`, or add --last: then no request is admitted."
            ) from None
    if not is_removed:
        raise UserFailed(f"There is no access key {key_id}. `headrace keys ls` lists them.")
    click.echo(f"Deleted {key_id}.")


def store_place(data_dir: Path | None, database: str | None) -> "tuple[DataFolder, str | Path]":
    """Return the data folder and the database of a platform."""
    from headrace.platform.host.folders import DataFolder

    settings = load_platform_settings({"data_dir": data_dir, "database": database}, os.environ)
    folder = DataFolder(data_folder(settings, os.environ))
    return folder, settings.database or folder.database


@contextmanager
def opened_keys(data_dir: Path | None, database: str | None = None) -> "Iterator[AccessKeys]":
    from headrace.platform.host.access_keys import AccessKeys
    from headrace.platform.state.store import open_store

    folder, where = store_place(data_dir, database)
    folder.make()
    store = open_store(where)
    try:
        yield AccessKeys(store, folder)
    finally:
        store.close()
