"""
The records of the model registry: model packages and their groups.

A versioned package has the name `group/version`, from which its ARN is formed as on AWS.
"""

from typing import Final

import msgspec

from headrace.platform.state.records import Json, Kind, NoStatus, RecordPart

MAX_TOKENS: Final = 32
"""Client tokens that a group remembers: SDKs repeat a call within seconds."""


class PackageGroupSpec(RecordPart, frozen=True, kw_only=True):
    members: Json
    last_version: int = 0
    """The number of the newest version; it is not used again after the version is deleted."""
    versions_by_token: dict[str, int] = msgspec.field(default_factory=dict)
    """The versions that the newest `ClientToken`s have created."""
    policy: str = ""

    def with_version(self, version: int, token: str | None) -> "PackageGroupSpec":
        versions = {**self.versions_by_token, **({token: version} if token else {})}
        newest = dict(list(versions.items())[-MAX_TOKENS:])
        return msgspec.structs.replace(self, last_version=version, versions_by_token=newest)


class PackageSpec(RecordPart, frozen=True, kw_only=True):
    """The members of the Create request, as updates have changed them."""

    members: Json
    call_id: str = ""
    """The `ClientToken` of the Create request."""


MODEL_PACKAGE_GROUP: Final = Kind("model-package-group", PackageGroupSpec, NoStatus)
MODEL_PACKAGE: Final = Kind("model-package", PackageSpec, NoStatus)


def split_name(name: str) -> tuple[str, int | None]:
    """Return the name without its version, and the version; None for an unversioned package."""
    base, _, version = name.partition("/")
    return base, int(version) if version else None
