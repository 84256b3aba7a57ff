"""`headrace backup` and `headrace restore`: a platform's records, and its objects, in a file and back."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.core.sizes import format_size
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.group import Examples, UserFailed
from headrace.tools.cli.keys import store_options, store_place
from headrace.tools.cli.progress import showing_progress

if TYPE_CHECKING:
    from headrace.platform.host.backup import BackupContents, Manifest

BACKUP_EXAMPLES = """
headrace backup headrace.tar.gz              copy the records; the platform may run
headrace backup --replace /backups/daily.tar.gz
headrace down                                stop it, so that its objects are at rest,
headrace backup --objects everything.tar.gz  then copy records and objects
"""
RESTORE_EXAMPLES = """
headrace restore --check headrace.tar.gz     verify a backup, and change nothing
headrace restore headrace.tar.gz             restore into an empty data folder
headrace restore --replace headrace.tar.gz   replace the records that are there
headrace restore headrace.tar.gz --database postgresql://user@host/name
"""
_SHOWN_UNREADABLE = 5
_NOT_OF_USERS = ("worker", "route", "scaling-activity")
"""Kinds of records that the platform makes."""


@click.command(cls=Examples, examples=BACKUP_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--objects", is_flag=True, help="Include the embedded S3 server's objects; the platform must be stopped.")
@click.option("--replace", is_flag=True, help="Replace FILE if it exists.")
@store_options
def backup(*, file: Path, objects: bool, replace: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Copy the records of a platform into FILE, a tar.gz: models, endpoints, policies, alarms and access keys.

    The platform may run; the copy is that of one moment. FILE has the access keys in clear and is readable by you
    only. It can be restored into SQLite and PostgreSQL, by this version of Headrace or a later one. Metrics and logs
    are not copied.

    With --objects FILE has the objects of the embedded S3 server, too, and the asynchronous invocations that wait.
    """
    from headrace.platform.host.backup import back_up

    folder, where = store_place(data_dir, database)
    with showing_progress() as progress:
        manifest = back_up(folder, where, file, has_objects=objects, is_replacing=replace, progress=progress)
    click.echo(f"Wrote {file} ({format_size(file.stat().st_size)}): {_summary(manifest)}.")
    click.echo("It has access keys in clear: keep it private.", err=True)


@click.command(cls=Examples, examples=RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Verify FILE and show what it has; change nothing.")
@click.option("--replace", is_flag=True, help="Replace the records, and the objects if FILE has some.")
@store_options
def restore(*, file: Path, check: bool, replace: bool, data_dir: Path | None, database: str | None) -> None:
    """
    Restore a platform from FILE, which `headrace backup` wrote, while it is stopped.

    FILE is verified first, then all records are replaced in one step. The next `headrace up` starts the endpoints
    again. A platform that has records or objects is refused without --replace.
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
