"""The dialect of each route of a server, by its settings."""

from collections.abc import Callable

from headrace.core.generation import ModelInfo
from headrace.server.generation import ChooseDialect
from headrace.settings.server_settings import ServerSettings
from headrace.wire.dialect import Dialect
from headrace.wire.registry import get_dialect, select_dialect
from headrace.wire.tgi.dialect import Route, Tgi
from headrace.wire.tgi.parameters import Version


def tgi_version(settings: ServerSettings) -> Version:
    """Return the version of TGI that the settings name, else the current one."""
    return "1.0" if settings.dialect in ("tgi-1.0", "hf-toolkit") else "3"


def tgi_dialect(settings: ServerSettings, route: Route) -> Dialect:
    """Return TGI's dialect for one kind of route."""
    return Tgi(version=tgi_version(settings), route=route)


def invocations_dialect(
    settings: ServerSettings, model: Callable[[], ModelInfo | None]
) -> tuple[Dialect, ChooseDialect]:
    """Return the dialect of `/invocations`, and a function by which a body and the model choose another."""
    configured = get_dialect(
        settings.dialect, output_formatter=settings.output_formatter, tgi_compat=settings.tgi_compat
    )
    returns_features = settings.task == "features"
    return configured, lambda body: select_dialect(body, configured, model(), returns_features=returns_features)
