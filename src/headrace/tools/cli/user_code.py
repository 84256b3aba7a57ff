"""The code that a model brings: found for `headrace serve` and for workers, before the engine's settings are read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.serving.settings.container_names import Notice
from headrace.serving.settings.container_tables import SERVER_NAMES
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.model_folder import MODEL_FOLDER, is_folder
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.settings.sources import locate_model
from headrace.serving.settings.values import ENV_PREFIX, env_name
from headrace.tools.cli.ready import print_code_ready, print_models_ready

if TYPE_CHECKING:
    from headrace.core.progress import Progress
    from headrace.serving.handlers.assembly import HandlerPlan
    from headrace.serving.handlers.choice import HandlerMode
    from headrace.serving.handlers.spec import HandlerSpec
    from headrace.serving.handlers.torchserve_config import ServerConfig
    from headrace.serving.handlers.torchserve_store import ModelStore, StartupModel
    from headrace.serving.server.formatters import Formatters

OWN_CODE = "The model's own code serves it"
"""Begins the sentence about code in a model's log and description."""
_CODE_FAMILIES = ("sklearn", "xgboost", "transformers")
"""Families of images whose code can serve a model without files."""


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """The code of one model, or of the models of TorchServe's store, and the settings of the server around it."""

    models: "Sequence[StartupModel]"
    settings: ServerSettings
    place: Path
    """The folder or archive that holds the code."""
    store: "ModelStore | None" = None
    """Where TorchServe's clients may register models from; None for other contracts."""
    config_notices: tuple[str, ...] = ()
    """Sentences about keys of TorchServe's config.properties."""
    server_notices: tuple[Notice, ...] = ()
    """About names of other containers that set the server around the code."""

    @property
    def plan(self) -> "HandlerPlan":
        """The plan of the only model of other contracts than TorchServe's."""
        return self.models[0].plan

    @property
    def serves(self) -> bool:
        """True if the code serves the model; False if it only changes requests and responses of the engine."""
        return self.store is not None or not self.plan.choice.formatters

    @cached_property
    def pythons(self) -> "Mapping[str, tuple[str, list[str]]]":
        """By the location of each model: a sentence about its interpreter, and sentences about unused settings."""
        from headrace.serving.handlers.assembly import describe_python

        return {model.url: describe_python(model.plan) for model in self.models}

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence for each model about the file or setting by which its code was chosen."""
        found = tuple(model.plan.choice.reason for model in self.models)
        return found or ("Clients may register the models of TorchServe's store.",)

    @property
    def summaries(self) -> tuple[str, ...]:
        """A sentence about what serves each model, for its log and its description."""
        return tuple(f"{_summary(model.plan)} {self.pythons[model.url][0]}" for model in self.models)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Sentences about settings of the code that have no effect."""
        lines = [*self.config_notices]
        for model in self.models:
            assert model.plan.spec is not None, "the plan has code"
            own = model.plan.spec.load.options.get("notices", "").splitlines()
            lines += [*self.pythons[model.url][1], *filter(None, own)]
        return tuple(lines)

    @property
    def notices(self) -> list[Notice]:
        """The summaries, and what has no effect on the code."""
        applied = [Notice("handler", "applied", text) for text in self.summaries]
        return [*applied, *(Notice("handler", "ignored", text) for text in self.ignored)]

    @property
    def description(self) -> list[str]:
        """The summaries, and what has no effect where the code serves, in sentences."""
        ignored = [notice.message for notice in self.server_notices if notice.kind != "applied"]
        return [*self.summaries, *self.ignored, *ignored]

    def prepare(self, plan: "HandlerPlan") -> "HandlerSpec":
        """
        Install the packages that the code of a model asks for; blocks.

        Raises:
            EnvironmentFailed: see `install_packages`.
        """
        from headrace.serving.handlers.assembly import install_packages

        return install_packages(plan, cache_home(self.settings) / "environments")


def find_user_code(
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    *,
    model_folder: Path = MODEL_FOLDER,
    empty_folder: Path | None = None,
    family: str = "",
    channels: Mapping[str, Path] | None = None,
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
        channels: folders of additional model data sources, by channel.

    Raises:
        SettingsError: a setting is invalid, or a file of the model cannot be read.
    """
    from headrace.serving.handlers.torchserve_archive import is_archive
    from headrace.serving.handlers.torchserve_config import load_config, variable

    folder, is_mounted, is_named = locate_model(overrides, env, model_folder=model_folder)
    if not folder.parts and not is_named:  # TS_CONFIG_FILE names a file with a store, or TS_MODEL_STORE the store
        folder = Path(variable(load_config(env, ()).env, "MODEL_STORE"))
    if not folder.parts or not (is_folder(folder) or is_archive(folder)):
        if empty_folder is None or family not in _CODE_FAMILIES:
            return None
        folder = empty_folder
    merged = {**overrides, "model": str(folder)}
    search = _Search(folder, merged, env, family=family, channels=channels or {}, is_mounted=is_mounted)
    if search.settings.handler == "native":
        return None
    from headrace.serving.handlers.torchserve_store import holds_models  # last: it takes a tenth of a start

    if holds_models(folder) and (store := search.store()) is not None:
        return store
    return search.model()


class _Search:
    """The search for the code of a model that is a folder or an archive."""

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object],
        env: Mapping[str, str],
        *,
        family: str,
        channels: Mapping[str, Path],
        is_mounted: bool,
    ) -> None:
        from headrace.core.gpus import visible_gpus

        self._folder = folder
        self._overrides = overrides
        self._env = env
        self._family = family
        self._channels = channels
        self._is_mounted = is_mounted
        self._server_env = {
            name: value for name, value in env.items() if name.startswith(ENV_PREFIX) or name in SERVER_NAMES
        }
        """Settings of the server; names of other containers are settings of the code."""
        self.settings, notices = load_settings(overrides, self._server_env)
        self._notices = tuple(notices)
        self._num_gpus = len(visible_gpus(env)) if self.settings.device != "cpu" else 0

    def store(self) -> UserCode | None:
        """Return the models of a store; None if the folder holds one model, which is served by its own name."""
        from headrace.serving.handlers.torchserve_store import is_model_store

        config = self._config(self._folder)
        if not is_model_store(self._folder, config.env):
            return None
        return self._torchserve(config, self._folder)

    def model(self) -> UserCode | None:
        """Return the code of one model; None if the engine serves it."""
        from headrace.serving.handlers.assembly import plan_handler
        from headrace.serving.handlers.choice import choose
        from headrace.serving.handlers.found import find_model
        from headrace.serving.handlers.isolation import Isolation
        from headrace.serving.handlers.torchserve_config import variable
        from headrace.serving.handlers.torchserve_store import StartupModel

        root = _unpack(self._folder, self.settings)
        name = self.settings.served_model_name or root.resolve().name
        found = find_model(root, model_name=name, env=self._env, family=self._family, num_gpus=self._num_gpus)
        found = replace(found, channels=self._channels, isolation=Isolation.of(self.settings))
        choice = choose(found, cast("HandlerMode", self.settings.handler))
        if choice.contract != "torchserve":
            plan = plan_handler(found, choice=choice)
            models = [StartupModel(url=self._folder.name, plan=plan)]
            code = UserCode(models=models, settings=self.settings, place=self._folder, server_notices=self._notices)
            return code if plan.spec else None
        config = self._config(self._folder if self._folder.is_dir() else self._folder.parent, root)
        plan = plan_handler(replace(found, env=config.env), choice=choice)
        store = variable(config.env, "MODEL_STORE") or self._folder.absolute().parent
        return self._torchserve(config, Path(store), [StartupModel(url=self._folder.name, plan=plan)])

    def _config(self, *folders: Path) -> "ServerConfig":
        """Read TorchServe's configuration: also that of the current folder, which is not a container's."""
        from headrace.serving.handlers.torchserve_config import load_config

        current = None if self._is_mounted else Path.cwd()
        return load_config(self._env, folders, current=current, trusts_models=self.settings.trust_model_files)

    def _torchserve(
        self, config: "ServerConfig", folder: Path, models: "Sequence[StartupModel] | None" = None
    ) -> UserCode:
        """Return models, by default those of the store, with the settings of TorchServe's server."""
        from headrace.serving.handlers.isolation import Isolation
        from headrace.serving.handlers.torchserve_config import check_config, server_settings
        from headrace.serving.handlers.torchserve_store import ModelStore

        notices = check_config(config)
        own = {name: value for name, value in self._overrides.items() if value not in (None, ())}
        given = server_settings(config.env)
        applied = {
            name: value for name, value in given.items() if name not in own and env_name(name) not in self._server_env
        }
        notices += [
            f"TorchServe's setting of {name} has no effect: the server's own setting of that name counts before it."
            for name in given.keys() - applied.keys()
        ]
        settings, _ = load_settings({**applied, **own}, self._server_env)
        home = cache_home(settings)
        store = ModelStore(
            folder,
            env=config.env,
            cache_folder=home,
            family=self._family,
            num_gpus=self._num_gpus,
            isolation=Isolation.of(settings),
        )
        return UserCode(
            models=store.startup_models() if models is None else models,
            settings=settings,
            place=self._folder,
            store=store,
            config_notices=tuple(notices),
            server_notices=self._notices,
        )


def unpacked(overrides: Mapping[str, object], env: Mapping[str, str]) -> dict[str, object]:
    """
    Return the overrides with the folder of a model that is an archive without code, such as SageMaker's model.tar.gz.

    Raises:
        SettingsError: the archive cannot be unpacked.
    """
    from headrace.serving.handlers.torchserve_archive import is_archive

    place = locate_model(overrides, env).folder
    if not is_archive(place):
        return dict(overrides)
    own = {name: value for name, value in env.items() if name.startswith(ENV_PREFIX)}
    settings, _ = load_settings(overrides, own)
    folder = _unpack(place, settings)
    return {**overrides, "model": str(folder), "served_model_name": settings.served_model_name or str(place)}


def _unpack(place: Path, settings: ServerSettings) -> Path:
    """Return the folder of a model that may be an archive."""
    from headrace.serving.artifacts.content_cache import ContentCache
    from headrace.serving.handlers.assembly import unpack_model

    return unpack_model(place, ContentCache(cache_home(settings) / "archives"))


def serve_user_code(code: UserCode) -> int:
    """Serve models' own code until a signal stops the server; return the exit code."""
    from headrace.serving.handlers.torchserve_config import management_options
    from headrace.serving.server.handlers.main import Startup, run_handler_server, run_torchserve_server

    notices = [*code.notices, *code.server_notices]
    if code.store is None:
        plan = code.plan
        assert plan.spec is not None, "the plan has code"
        return run_handler_server(
            code.settings,
            plan.spec,
            notices=notices,
            prepare=lambda _spec: code.prepare(plan),
            on_ready=print_code_ready,
        )
    startup = [
        Startup(url=model.url, prepare=partial(code.prepare, model.plan), is_default=model.is_default)
        for model in code.models
    ]
    return run_torchserve_server(
        code.settings,
        startup,
        code.store.find,
        options=management_options(code.store.env),
        notices=notices,
        on_ready=print_models_ready,
    )


def formatters_of(code: UserCode, settings: ServerSettings, progress: "Progress") -> "Formatters":
    """Return the formatters that a model's code has around the engine, with the model whose tokenizer they may use."""
    from headrace.inference.models.sources import locate
    from headrace.serving.server.formatters import Formatters

    def prepare(_spec: "HandlerSpec") -> "HandlerSpec":
        spec = code.prepare(code.plan)
        home = cache_home(settings)
        model = locate(settings.model, revision=settings.revision, home=home, progress=progress)
        options = {**spec.load.options, "model_id": str(model.path.absolute())}
        return replace(spec, load=replace(spec.load, options=options))

    assert code.plan.spec is not None, "the plan has code"
    return Formatters(code.plan.spec, prepare=prepare)


def formatted_overrides(overrides: Mapping[str, object], env: Mapping[str, str]) -> dict[str, object]:
    """
    Return the overrides of an engine with formatters: they are DJL's, and so is its dialect by default.

    Files beside code that is run are trusted by default: the code could do all that they ask for.
    """
    defaults = {"dialect": "lmi-17", "trust_model_files": "true"}
    open_names = [name for name in defaults if overrides.get(name) in (None, "auto") and not env.get(env_name(name))]
    return {**overrides, **{name: defaults[name] for name in open_names}}


def formatted_notices(code: UserCode, notices: Sequence[Notice]) -> list[Notice]:
    """Return the notices of an engine with formatters, which have an effect."""
    kept = [notice for notice in notices if notice.name != code.plan.choice.formatters]
    return [*code.notices, *kept]


def _summary(plan: "HandlerPlan") -> str:
    spec = plan.spec
    assert spec is not None, "the plan has code"
    if plan.choice.formatters:
        return f"The model's own formatters change requests and responses: {plan.choice.reason}"
    entry = f" ({Path(spec.load.entry).name})" if spec.load.entry else ""
    return f"{OWN_CODE}, by the contract {spec.contract}{entry}: {plan.choice.reason}"


def cache_home(settings: ServerSettings) -> Path:
    """Return the folder of a server's downloads, packages and answers."""
    from headrace.inference.models.sources import home_folder

    return Path(settings.cache_dir) if settings.cache_dir else home_folder(os.environ)
