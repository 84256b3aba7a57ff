"""The location of a model of JumpStart: a container that names AWS's bucket gets the model of the catalogue. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from headrace.platform.control.jumpstart.catalogue import Catalogue, CatalogueRow

Json = dict[str, Any]
_MODEL_FOLDER: Final = "/opt/ml/model/"
NOTICE: Final = "JumpStart's "
"""The beginning of a notice about a model that the catalogue names; the text of a failure repeats it."""


def located(container: Json, catalogue: Catalogue) -> tuple[Json, tuple[str, ...]]:
    """Return the container with the catalogue's model in place of AWS's files, and a notice; else as it is."""
    row = catalogue.find_artifacts(_data_uri(container))
    if row is None:
        return container, ()
    variables: dict[str, str] = container.get("Environment") or {}
    kept = {name: value for name, value in variables.items() if not f"{value.strip()}/".startswith(_MODEL_FOLDER)}
    others = {name: value for name, value in container.items() if name not in ("ModelDataUrl", "ModelDataSource")}
    named = {**others, "Environment": {"HF_MODEL_ID": row.model, **kept}}
    return named, (_notice(row),)


def hints(notices: Sequence[str]) -> list[str]:
    """Return the notices that say from where a model of JumpStart is."""
    return [text for text in notices if text.startswith(NOTICE)]


def _data_uri(container: Json) -> str:
    source: Json = (container.get("ModelDataSource") or {}).get("S3DataSource") or {}
    return str(container.get("ModelDataUrl") or source.get("S3Uri") or "")


def _notice(row: CatalogueRow) -> str:
    return (
        f"{NOTICE}{row.model_id} is {row.model} here. `headrace jumpstart add {row.model_id} --model MODEL` names "
        "another model or its folder."
    )
