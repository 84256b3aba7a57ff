"""
`headrace keys`, `backup` and `restore`: the access keys in a platform's store, and its records and objects in a file.

They open the store itself, also while no platform runs on it.
"""

import json
import os
import shlex
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.core.sizes import format_size
from headrace.serving.settings.platform_settings import PlatformSettings, data_folder, load_platform_settings
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import HelpfulGroup, UserFailed, all_of
from headrace.tools.cli.platform_client import data_dir_option
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.tables import age, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.platform.host.access_keys import AccessKeys
    from headrace.platform.host.backup import BackupContents, Manifest
    from headrace.platform.host.folders import DataFolder
    from headrace.serving.wire.key_limits import KeyLimits

EXAMPLES = """
headrace keys create --note "the CI machine"   its secret is shown once
headrace keys create --model chat --requests-per-minute 60
headrace keys ls                               list the keys
headrace keys limit HRAK... --max-in-flight 4  change what a key may use
headrace keys rm HRAK...                       delete a key
"""
LIMIT_EXAMPLES = """
headrace keys limit HRAK0123456789ABCDEF --model 'team-a-*' --max-in-flight 4
headrace keys limit HRAK0123456789ABCDEF --action invoke --action read
headrace keys limit HRAK0123456789ABCDEF --none
"""
BACKUP_EXAMPLES = """
headrace backup headrace.tar.gz              copy the records; it may run
headrace backup --replace /backups/daily.tar.gz
headrace down                                stop it; then copy objects too
headrace backup --objects everything.tar.gz
"""
RESTORE_EXAMPLES = """
headrace restore --check headrace.tar.gz     verify a backup, change nothing
headrace restore headrace.tar.gz             into an empty data folder
headrace restore --replace headrace.tar.gz   replace the records of a platform
headrace restore headrace.tar.gz --database postgresql://user@host/name
"""
_SHOWN_UNREADABLE = 5
_NOT_OF_USERS = ("worker", "route", "scaling-activity")
"""Kinds of records that the platform makes."""


@click.group(cls=HelpfulGroup, examples=EXAMPLES)
def keys() -> None:
    """Create, limit, list and delete the access keys of a platform."""


store_options = all_of(
    [
        data_dir_option,
        click.option("--database", metavar="URL", help="The platform's database.  [default: in the data folder]"),
    ]
)
"""Adds the location of a platform's records."""


_amount = click.IntRange(min=1)
limit_options = all_of(
    [
        click.option(
            "--model",
            "models",
            multiple=True,
            metavar="NAME",
            help="A model that it may use, such as 'chat-*'. May be repeated.",
        ),
        click.option(
            "--action",
            "actions",
            multiple=True,
            metavar="ACTION",
            help="An action that it may use: invoke, read, or IAM's name such as 's3:Get*'. May be repeated.",
        ),
        click.option("--requests-per-minute", type=_amount, help="Requests in a minute."),
        click.option("--tokens-per-minute", type=_amount, help="Tokens of prompts and answers in a minute."),
        click.option("--max-in-flight", type=_amount, help="Requests at the same time."),
    ]
)
"""Adds the limits of a key, which `limits_of` reads."""


def limits_of(options: "Mapping[str, Any]") -> "KeyLimits":
    """Return the limits that options give. Raises `click.UsageError`."""
    import msgspec

    from headrace.serving.wire.key_limits import KeyLimits

    try:
        return msgspec.convert(options, KeyLimits)
    except (msgspec.ValidationError, ValueError) as error:
        raise click.UsageError(str(error)) from error


@keys.command(
    cls=HelpfulCommand,
    examples="headrace keys create\nheadrace keys create --note shop --model chat --requests-per-minute 60",
)
@click.option("--note", default="", help="Note on the purpose of the key.")
@limit_options
@store_options
def create(*, note: str, data_dir: Path | None, database: str | None, **options: Any) -> None:
    """
    Create a key and print it as the environment variables that AWS tools read.

    The secret is shown only once. OpenAI clients use it as their API key. Without limits it may use everything.
    """
    limits = limits_of(options)
    with opened_keys(data_dir, database) as access_keys:
        made = access_keys.create(note=note, limits=limits)
    click.echo(f"AWS_ACCESS_KEY_ID={made.key_id}\nAWS_SECRET_ACCESS_KEY={made.secret}")
    click.echo("Save the secret: it is shown only once.", err=True)


@keys.command("ls", cls=HelpfulCommand, examples="headrace keys ls\nheadrace keys ls --json | jq -r '.[].key'")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@store_options
def list_keys(*, data_dir: Path | None, database: str | None, as_json: bool) -> None:
    """List the keys, without their secrets."""
    with opened_keys(data_dir, database) as access_keys:
        records = access_keys.list()
    if as_json:
        facts = [
            {"key": k.key_id, "created_s": k.created_s, "note": k.note, "limits": limits_json(k.limits)}
            for k in records
        ]
        click.echo(json.dumps(facts))
        return
    if not records:
        click.echo("There are no access keys. `headrace keys create` creates one.", err=True)
        return
    now = datetime.now(UTC)
    rows = [
        (key.key_id, age(datetime.fromtimestamp(key.created_s, UTC), now), key.limits.describe() or "-", key.note)
        for key in records
    ]
    click.echo(table([("KEY", "AGE", "LIMITS", "NOTE"), *rows]))


def limits_json(limits: "KeyLimits") -> dict[str, Any]:
    """Return the limits that a key has as JSON."""
    import msgspec

    json_limits: dict[str, Any] = msgspec.to_builtins(limits)
    return json_limits


@keys.command("limit", cls=HelpfulCommand, examples=LIMIT_EXAMPLES)
@click.argument("key_id")
@limit_options
@click.option("--none", "is_none", is_flag=True, help="Take all limits away.")
@store_options
def limit(*, key_id: str, is_none: bool, data_dir: Path | None, database: str | None, **options: Any) -> None:
    """
    Replace the limits of a key; a running platform applies them within a second.

    With --model it may only invoke these models, unless --action allows more.
    """
    limits = limits_of(options)
    if is_none != limits.is_empty:
        raise click.UsageError("Expected either limits, such as --requests-per-minute 60, or --none.")
    with opened_keys(data_dir, database) as access_keys:
        changed = access_keys.limit(key_id, limits)
    if changed is None:
        raise UserFailed(f"There is no access key {key_id}. `headrace keys ls` lists them.")
    click.echo(f"{key_id}: {limits.describe() or 'no limits'}.")


@keys.command(
    cls=HelpfulCommand, examples="headrace keys rm HRAK0123456789ABCDEF\nheadrace keys rm HRAK0123456789ABCDEF --last"
)
@click.argument("key_id")
@click.option("--last", is_flag=True, help="Delete the key even if no other one is left.")
@store_options
def rm(*, key_id: str, last: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Delete a key: the platform then rejects requests that are signed with it.

    To delete the last key, add --last: without a key no request is admitted.
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


@click.command(cls=HelpfulCommand, examples=BACKUP_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--objects", is_flag=True, help="Include the embedded S3 server's objects; the platform must be stopped.")
@click.option("--replace", is_flag=True, help="Replace FILE if it exists.")
@store_options
def backup(*, file: Path, objects: bool, replace: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Copy the records of a platform into FILE, a tar.gz: models, endpoints, policies, alarms and access keys.

    The platform may run: FILE is a copy of one moment. FILE has the access keys in clear, so only you can read it.
    This version of Headrace and later ones restore it into SQLite or PostgreSQL. It has no metrics and no logs.

    With --objects it also has the objects of the embedded S3 server, and files and batches.
    """
    from headrace.platform.host.backup import back_up

    folder, where = store_place(data_dir, database)
    with showing_progress() as progress:
        manifest = back_up(folder, where, file, has_objects=objects, is_replacing=replace, progress=progress)
    click.echo(f"Wrote {file} ({format_size(file.stat().st_size)}): {_summary(manifest)}.")
    click.echo("It has access keys in clear: keep it private.", err=True)


@click.command(cls=HelpfulCommand, examples=RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Verify FILE and show what it has; change nothing.")
@click.option("--replace", is_flag=True, help="Replace the records, and the objects if FILE has some.")
@store_options
def restore(*, file: Path, check: bool, replace: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Restore a platform from FILE, which `headrace backup` wrote, while it is stopped.

    The command verifies FILE first, then replaces all records in one step. The next `headrace up` starts the endpoints
    again. If the platform has records or objects already, the command needs --replace.
    """
    from headrace.platform.host import backup

    if check and replace:
        raise UserFailed("--check changes nothing, and --replace replaces records. Leave one of them out.")
    folder, where = store_place(data_dir, database)
    with showing_progress() as progress:
        if check:
            contents = backup.check_backup(file, progress)
        else:
            contents = backup.restore(folder, where, file, is_replacing=replace, progress=progress)
    click.echo(f"{'Verified' if check else 'Restored'} {file}: {_summary(contents.manifest)}.")
    _show_notes(contents)
    if not check:
        option = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
        click.echo(f"`headrace up --detach{option}` starts the endpoints.", err=True)


def _summary(manifest: "Manifest") -> str:
    made = datetime.fromtimestamp(manifest.created_s, UTC)
    shown = {kind.replace("-", " "): number for kind, number in manifest.kinds.items() if kind not in _NOT_OF_USERS}
    kinds = ", ".join(f"{number} {_plural(kind, number)}" for kind, number in shown.items())
    objects = [facts.num_bytes for name, facts in manifest.files.items() if name.startswith("objects/")]
    more = f", {format_size(sum(objects))} of objects" if manifest.has_objects else ""
    return f"{kinds or 'no records'}{more}, of {made:%Y-%m-%d %H:%M:%S} UTC by Headrace {manifest.headrace}"


def _plural(kind: str, number: int) -> str:
    plural = f"{kind[:-1]}ies" if kind.endswith("cy") else f"{kind}s"
    return kind if number == 1 else plural


def _show_notes(contents: "BackupContents") -> None:
    for record in contents.unreadable[:_SHOWN_UNREADABLE]:
        click.echo(f"Note: the {record.kind} {record.name} cannot be read ({record.reason}).", err=True)
    if (num_more := len(contents.unreadable) - _SHOWN_UNREADABLE) > 0:
        click.echo(f"Note: {num_more} more records cannot be read.", err=True)
    defaults, settings = PlatformSettings(), contents.manifest.settings
    changed = {name: value for name, value in settings.items() if value != getattr(defaults, name, value)}
    flags = " ".join(
        flag_name(name) if value is True else f"{flag_name(name)} {shlex.quote(str(value))}"
        for name, value in changed.items()
    )
    if flags:
        click.echo(f"Note: its platform ran with {flags}. Start this one with the same.", err=True)
