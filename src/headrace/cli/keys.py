"""`headrace keys`: the access keys of a platform, in its store. Works whether or not the platform runs."""

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.group import Examples, HelpfulGroup, UserFailed
from headrace.cli.tables import age, table
from headrace.settings.platform_settings import PlatformSettings, data_folder, load_platform_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.control.access_keys import AccessKeys

EXAMPLES = """
headrace keys create --note "the CI machine"    a new key; its secret is shown once
headrace keys ls                                which there are
headrace keys rm HRAK...                        it opens nothing any more
"""


@click.group(cls=HelpfulGroup, examples=EXAMPLES)
def keys() -> None:
    """Make, list and remove the access keys of a platform."""


def store_options(command: click.Command) -> click.Command:
    """Where the platform keeps its records."""
    command.params.extend(
        [
            click.Option(["--data-dir"], type=click.Path(path_type=Path), help="The platform's data folder."),
            click.Option(["--database"], help="The platform's database, if it is elsewhere."),
        ]
    )
    return command


@store_options
@keys.command(cls=Examples, examples='headrace keys create\nheadrace keys create --note "the CI machine"')
@click.option("--note", default="", help="What it is for.")
def create(*, note: str, data_dir: Path | None, database: str | None) -> None:
    """
    Make a key and print it as the lines that AWS's tools read.

    The secret is not shown again. It is the bearer key of OpenAI's clients, too.
    """
    with _opened(data_dir, database) as access_keys:
        made = access_keys.create(note=note)
    click.echo(f"AWS_ACCESS_KEY_ID={made.key_id}\nAWS_SECRET_ACCESS_KEY={made.secret}")
    click.echo("Keep the secret: it is not shown again.", err=True)


@store_options
@keys.command("ls", cls=Examples, examples="headrace keys ls")
def list_keys(*, data_dir: Path | None, database: str | None) -> None:
    """List the keys, without their secrets."""
    with _opened(data_dir, database) as access_keys:
        found = access_keys.list()
    if not found:
        click.echo("There are no access keys. `headrace keys create` makes one.", err=True)
        return
    now = datetime.now(UTC)
    rows = [(one.key_id, age(datetime.fromtimestamp(one.created_s, UTC), now), one.note) for one in found]
    click.echo(table([("KEY", "AGE", "NOTE"), *rows]))


@store_options
@keys.command(cls=Examples, examples="headrace keys rm HRAK0123456789ABCDEF")
@click.argument("key_id")
def rm(*, key_id: str, data_dir: Path | None, database: str | None) -> None:
    """Remove a key; requests that are signed with it are refused from then on."""
    with _opened(data_dir, database) as access_keys:
        is_removed = access_keys.remove(key_id)
    if not is_removed:
        raise UserFailed(f"There is no access key {key_id}. `headrace keys ls` lists them.")
    click.echo(f"{key_id} is removed.")


@contextmanager
def opened_keys(settings: PlatformSettings, folder: Path) -> "Iterator[AccessKeys]":
    """The keys in the store of a platform."""
    from headrace.control.access_keys import AccessKeys
    from headrace.platform.folders import DataFolder
    from headrace.state.sql import open_store

    data = DataFolder(folder)
    data.make()
    store = open_store(settings.database or data.database)
    try:
        yield AccessKeys(store)
    finally:
        store.close()


@contextmanager
def _opened(data_dir: Path | None, database: str | None) -> "Iterator[AccessKeys]":
    settings = load_platform_settings({"data_dir": data_dir, "database": database}, os.environ)
    with opened_keys(settings, data_folder(settings, os.environ)) as access_keys:
        yield access_keys
