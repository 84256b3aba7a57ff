"""
The environment of user code: one rule for `headrace serve`, the platform's workers and installations. Pure.

Code gets the environment of its model server without Headrace's own variables. Credentials that the server was given
for the model, such as `HF_TOKEN` or the keys of a role, are passed on, as SageMaker passes them to its containers; a
platform's worker is given none of the platform's credentials (`cluster.worker_environment`).
"""

from collections.abc import Mapping
from typing import Final

from headrace.http.otlp import SECRETS as EXPORT_SECRETS
from headrace.settings.container_flags import FLAGS
from headrace.settings.container_meanings import Fills
from headrace.settings.container_tables import ENVIRONMENT
from headrace.settings.loading import CODE_ENV_NAMES
from headrace.settings.server_settings import ENV_PREFIX

THREADS_VARIABLE: Final = "OMP_NUM_THREADS"
"""Also read by torch, OpenBLAS, MKL and XGBoost."""
_TABLES: Final = ((ENVIRONMENT, ""), *((flags, prefix) for prefix, flags in FLAGS.items()))
_SERVER_KEYS: Final = frozenset(
    f"{prefix}{name}".upper()
    for table, prefix in _TABLES
    for name, meaning in table.items()
    if isinstance(meaning, Fills) and meaning.field == "api_key"
)
"""Variables in which other containers take the API key of the model server."""


def child_environment(server: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the model server's environment that user code gets."""
    kept = {name: value for name, value in server.items() if not _is_own(name)}
    return kept | {"PYTHONUNBUFFERED": "1"}


def share_of_threads(environment: Mapping[str, str], *, num_children: int, num_cores: int) -> dict[str, str]:
    """Return the variable that divides the cores among children; nothing for one child or if it is already set."""
    if num_children < 2 or environment.get(THREADS_VARIABLE):
        return {}
    return {THREADS_VARIABLE: str(max(1, num_cores // num_children))}


def _is_own(name: str) -> bool:
    return (
        name in _SERVER_KEYS or name in EXPORT_SECRETS or (name.startswith(ENV_PREFIX) and name not in CODE_ENV_NAMES)
    )
