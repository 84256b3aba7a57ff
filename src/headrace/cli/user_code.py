"""The code that a model brings: found for `headrace serve` and for workers, before the engine's settings are read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.cli.ready import print_code_ready
from headrace.settings.container_env import SERVER_NAMES
from headrace.settings.container_names import Notice
from headrace.settings.loading import load_settings
from headrace.settings.model_folder import MODEL_FOLDER, is_folder
from headrace.settings.server_settings import ENV_PREFIX, ServerSettings
from headrace.settings.sources import locate_model

if TYPE_CHECKING:
    from headrace.core.progress import Progress
    from headrace.handlers.assembly import HandlerPlan
    from headrace.handlers.choice import HandlerMode
    from headrace.handlers.spec import HandlerSpec
    from headrace.server.formatters import Formatters

OWN_CODE = "The model's own code serves it"
"""Begins the sentence about code in a model's log and description."""
_CODE_FAMILIES = ("sklearn", "xgboost", "transformers")
"""Families of images whose code can serve a model without files."""


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A model's code, and the settings of the server around it."""

    plan: "HandlerPlan"
    settings: ServerSettings
    server_notices: tuple[Notice, ...] = ()
    """About names of other containers that set the server around the code."""

    @property
    def serves(self) -> bool:
        """True if the code serves the model; False if it only changes requests and responses of the engine."""
        return not self.plan.choice.formatters

    @property
    def summary(self) -> str:
        """A sentence about what serves the model, for its log and its description."""
        spec = self.plan.spec
        assert spec is not None, "the plan has code"
        entry = f" ({Path(spec.load.entry).name})" if spec.load.entry else ""
        what = f"{OWN_CODE}, by the contract {spec.contract}{entry}"
        if not self.serves:
            what = "The model's own formatters change requests and responses"
        return f"{what}: {self.plan.choice.reason} {self.python[0]}"

    @cached_property
    def python(self) -> tuple[str, list[str]]:
        """A sentence about the interpreter, and sentences about what of it has no effect."""
        from headrace.handlers.assembly import describe_python

        return describe_python(self.plan)

    @property
    def notices(self) -> list[Notice]:
        """The summary, and what has no effect on the code."""
        spec = self.plan.spec
        assert spec is not None, "the plan has code"
        ignored = [*self.python[1], *filter(None, spec.load.options.get("notices", "").splitlines())]
        return [
            Notice("handler", "applied", self.summary),
            *(Notice("handler", "ignored", text) for text in ignored),
        ]

    @property
    def description(self) -> list[str]:
        """The summary, and what has no effect where the code serves, in sentences."""
        ignored = [notice for notice in (*self.notices, *self.server_notices) if notice.kind != "applied"]
        return [self.summary, *(notice.message for notice in ignored)]

    def prepare(self) -> "HandlerSpec":
        """
        Install the packages that the code asks for; blocks.

        Raises:
            EnvironmentFailed: see `install_packages`.
        """
        from headrace.handlers.assembly import install_packages

        return install_packages(self.plan, _home(self.settings) / "environments")


def find_user_code(
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    *,
    model_folder: Path = MODEL_FOLDER,
    empty_folder: Path | None = None,
    family: str = "",
) -> UserCode | None:
    """
    Return the code that serves a model, or changes requests and responses of Headrace's engine; None without code.

    Names of other containers are settings of the code; only those of the server around it are read here.

    Args:
        overrides: as for `gather_settings`.
        env: the environment.
        model_folder: stands for `/opt/ml/model`.
        empty_folder: the folder of a model without files, for images that can serve one.
        family: kind of the image.

    Raises:
        SettingsError: a setting is invalid, or a file of the model cannot be read.
    """
    from headrace.core.gpus import visible_gpus
    from headrace.handlers.assembly import plan_handler, unpack_model
    from headrace.handlers.found import find_model

    folder, is_container, _ = locate_model(overrides, env, model_folder=model_folder)
    if not folder.parts or not (is_folder(folder) or folder.suffix == ".mar"):
        if empty_folder is None or family not in _CODE_FAMILIES:
            return None
        folder = empty_folder
    server_env = {name: value for name, value in env.items() if name.startswith(ENV_PREFIX) or name in SERVER_NAMES}
    settings, notices = load_settings({**overrides, "model": str(folder)}, server_env, container=is_container)
    root = unpack_model(folder, _home(settings) / "archives")
    found = find_model(
        root,
        model_name=settings.served_model_name or root.resolve().name,
        env=env,
        family=family,
        num_gpus=len(visible_gpus(env)) if settings.device != "cpu" else 0,
    )
    plan = plan_handler(found, cast("HandlerMode", settings.handler))
    return None if plan.spec is None else UserCode(plan=plan, settings=settings, server_notices=tuple(notices))


def serve_user_code(code: UserCode) -> int:
    """Serve a model's own code until a signal stops the server; return the exit code."""
    from headrace.server.handlers.main import run_handler_server
    from headrace.server.torchserve_routes import torchserve_routes

    assert code.plan.spec is not None, "the plan has code"
    return run_handler_server(
        code.settings,
        code.plan.spec,
        notices=[*code.notices, *code.server_notices],
        prepare=lambda _spec: code.prepare(),
        more_routes=torchserve_routes if code.plan.spec.contract == "torchserve" else None,
        on_ready=print_code_ready,
    )


def formatters_of(code: UserCode, settings: ServerSettings, progress: "Progress") -> "Formatters":
    """Return the formatters that a model's code has around the engine, with the model whose tokenizer they may use."""
    from headrace.models.sources import locate
    from headrace.server.formatters import Formatters

    def prepare(_spec: "HandlerSpec") -> "HandlerSpec":
        spec = code.prepare()
        home = _home(settings)
        model = locate(settings.model, revision=settings.revision, home=home, progress=progress)
        options = {**spec.load.options, "model_id": str(model.path.absolute())}
        return replace(spec, load=replace(spec.load, options=options))

    assert code.plan.spec is not None, "the plan has code"
    return Formatters(code.plan.spec, prepare=prepare)


def formatted_overrides(overrides: Mapping[str, object], env: Mapping[str, str]) -> dict[str, object]:
    """Return the overrides of an engine with formatters: they are DJL's, and so is its dialect by default."""
    is_given = overrides.get("dialect") not in (None, "auto") or env.get(f"{ENV_PREFIX}DIALECT")
    return {**overrides} if is_given else {**overrides, "dialect": "lmi-17"}


def formatted_notices(code: UserCode, notices: Sequence[Notice]) -> list[Notice]:
    """Return the notices of an engine with formatters, which have an effect."""
    return [*code.notices, *(notice for notice in notices if notice.name != code.plan.choice.formatters)]


def _home(settings: ServerSettings) -> Path:
    from headrace.models.sources import home_folder

    return Path(settings.cache_dir) if settings.cache_dir else home_folder(os.environ)
