"""Models and endpoint configurations: made once, never changed, copied by the endpoints that use them."""

from typing import Final

from headrace.state.records import Json, Kind, NoStatus, RecordPart


class DefinitionSpec(RecordPart, frozen=True, kw_only=True):
    """The members of the request that made it, as the Describe operation repeats them."""

    members: Json


def _as_members(spec: Json, status: Json) -> tuple[Json, Json]:
    """From version 1, whose spec was the members themselves."""
    return {"members": spec}, status


MODEL: Final[Kind[DefinitionSpec, NoStatus]] = Kind("model", DefinitionSpec, NoStatus, migrations=(_as_members,))
ENDPOINT_CONFIG: Final[Kind[DefinitionSpec, NoStatus]] = Kind(
    "endpoint-config", DefinitionSpec, NoStatus, migrations=(_as_members,)
)
