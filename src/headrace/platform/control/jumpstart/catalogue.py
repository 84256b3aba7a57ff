"""
The catalogue of JumpStart: the ids of AWS's model table, and the model that Headrace serves for each.

`catalogue.toml` is shipped. A file of the user's in the same format adds and replaces rows; it is read again when it
changes, so that `headrace jumpstart add` works while a platform runs.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from reprlib import repr as short
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger
from headrace.serving.settings.documents import read_toml
from headrace.serving.settings.values import near_name

SERVERS: Final = ("tgi", "lmi", "embedding", "marketplace")
"""Model servers of JumpStart's containers; `marketplace`: proprietary models, which can be listed and not deployed."""
_BUCKET: Final = re.compile(r"jumpstart-(private-)?cache-[a-z]+-(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)")
_ARTIFACTS: Final = re.compile(
    rf"s3://(?P<bucket>{_BUCKET.pattern})/[^/]+/(?P<id>[^/]+)/artifacts/inference-prepack/.*", re.DOTALL
)
_ID: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""Source: botocore, shape `HubContentName`."""
_VERSION: Final = re.compile(r"\d{1,2}\.\d{1,6}\.\d{1,6}")
_EXAMPLE: Final = 'my-model = { model = "/models/my-model", server = "tgi" }'


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """An id of JumpStart, the model that is served for it, and the schema of its requests."""

    model_id: str
    model: str = ""
    """A Hub id, an alias, an S3 prefix or a local path; empty for `marketplace`."""
    server: str = "lmi"
    """A name of `SERVERS`: the container, and with it the schema of requests."""
    version: str = "1.0.0"
    """The newest version in AWS's table."""
    oldest: int = 1
    """The oldest major version with the schema of `server`; the SDK finds `<major>.0.0` of each up to the newest."""
    instance_type: str = "ml.g5.2xlarge"
    """The default of the SDK."""
    gated: bool = False
    """The model is deployed only with `accept_eula`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the container, beside those of the server."""
    is_own: bool = False
    """True if the row is in the user's file."""

    @property
    def versions(self) -> tuple[str, ...]:
        """Return the versions that the SDK finds, the newest last."""
        major = int(self.version.partition(".")[0])
        return (*(f"{number}.0.0" for number in range(self.oldest, major)), self.version)

    @property
    def is_marketplace(self) -> bool:
        return self.server == "marketplace"

    def artifact_key(self, version: str) -> str:
        """Return the prefix of the model's files in the bucket, as AWS forms it."""
        framework = "-".join(self.model_id.split("-")[:2])
        return f"{framework}/{self.model_id}/artifacts/inference-prepack/v{version}/"


def region_of_bucket(bucket: str) -> str | None:
    """Return the region of a bucket of JumpStart; None for any other bucket."""
    found = _BUCKET.fullmatch(bucket)
    return found["region"] if found is not None else None


def bucket_of(region: str, *, gated: bool) -> str:
    """Return the name of JumpStart's bucket in a region. Source: the SDK's `region_config.json`."""
    return f"jumpstart-{'private-' if gated else ''}cache-prod-{region}"


class Catalogue:
    """The shipped rows, and those of the user's file."""

    def __init__(self, path: Path | None = None) -> None:
        """Read nothing yet; a file that does not exist has no rows."""
        self._path = path
        self._seen: object = None
        self._rows: Mapping[str, CatalogueRow] | None = None

    @property
    def rows(self) -> Mapping[str, CatalogueRow]:
        """Return the rows by id. Raises `SettingsError` if the file is invalid when it is first read."""
        facts = _facts(self._path)
        if self._rows is None or facts != self._seen:
            self._seen = facts
            try:
                self._rows = {**shipped_rows(), **(read_file(self._path) if facts and self._path else {})}
            except SettingsError as error:
                if self._rows is None:
                    raise
                get_logger().warning("jumpstart.file_ignored", reason=error.message)
        return self._rows

    def find_artifacts(self, uri: str) -> CatalogueRow | None:
        """Return the row whose files a URI in a bucket of JumpStart names, or None."""
        found = _ARTIFACTS.fullmatch(uri)
        row = self.rows.get(found["id"]) if found is not None else None
        return None if row is None or row.is_marketplace else row


def open_catalogue(named: Path | None, default: Path) -> Catalogue:
    """Return the catalogue with a file that a setting names, or the one at its usual place. Raises `SettingsError`."""
    if named is not None or default.exists():
        read_file(named or default)
    return Catalogue(named or default)


def _facts(path: Path | None) -> object:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)


@cache
def shipped_rows() -> Mapping[str, CatalogueRow]:
    path = Path(__file__).with_name("catalogue.toml")
    return read_rows(path.read_text(encoding="utf-8"), source=str(path))


def read_file(path: Path) -> dict[str, CatalogueRow]:
    """Return the rows of the user's file. Raises `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"jumpstart is {path}, which cannot be read: {why}.", name="jumpstart") from error
    return read_rows(text, source=str(path), is_own=True)


def read_rows(text: str, *, source: str, is_own: bool = False) -> dict[str, CatalogueRow]:
    """Parse the TOML text of the file `source`. Raises `SettingsError`, which names the row."""
    document = read_toml(text, source, name="jumpstart")
    return {
        model_id: _row(model_id, table, where=f"{model_id} in {source}", is_own=is_own)
        for model_id, table in document.items()
    }


_FIELDS: Final[Mapping[str, type]] = {
    item.name: Mapping if item.name == "environment" else type(item.default)
    for item in fields(CatalogueRow)
    if item.default is not MISSING or item.name == "environment"
}
_KEYS: Final = tuple(name for name in _FIELDS if name != "is_own")


def _row(model_id: str, table: Any, *, where: str, is_own: bool) -> CatalogueRow:
    if not isinstance(table, dict):
        raise SettingsError(f"{where} is {short(table)}; expected a row such as {_EXAMPLE}.", name="jumpstart")
    for key, value in table.items():
        if key not in _KEYS:
            near = near_name(key, _KEYS, cutoff=0.6)
            hint = f"Did you mean {near}?" if near else f"Known are {', '.join(_KEYS)}."
            raise SettingsError(f"{where}: {key} is not known. {hint}", name="jumpstart")
        if not isinstance(value, _FIELDS[key]) or isinstance(value, bool) is not (_FIELDS[key] is bool):
            kind = {Mapping: "a table of strings", bool: "true or false", int: "a number"}.get(_FIELDS[key], "a string")
            raise SettingsError(f"{where}: {key} is {short(value)}; expected {kind}.", name="jumpstart")
    row = CatalogueRow(model_id=model_id, is_own=is_own, **table)
    _check(row, where)
    return row


def _check(row: CatalogueRow, where: str) -> None:
    if _ID.fullmatch(row.model_id) is None:
        message = f"{where} is not an id; expected at most 63 letters, digits and hyphens."
    elif row.server not in SERVERS:
        message = f"{where}: server is {row.server!r}; expected one of {', '.join(SERVERS)}."
    elif not row.model and not row.is_marketplace:
        message = f"{where} has no model; expected a Hub id, an alias, an S3 prefix or a local path."
    elif _VERSION.fullmatch(row.version) is None:
        message = f"{where}: version is {row.version!r}; expected three numbers such as 1.0.0."
    elif not all(isinstance(value, str) for value in row.environment.values()):
        message = f"{where}: a variable of environment is no string; quote its value."
    else:
        return
    raise SettingsError(message, name="jumpstart")
