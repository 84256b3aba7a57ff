"""
Finds the models that TorchServe serves: those to load at startup, and those that clients register. Blocks.

Source of the texts: pytorch/serve `frontend/archive/src/main/java/org/pytorch/serve/archive/model/ModelArchive.java`.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.artifacts.fetcher import Fetcher
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ArtifactSource
from headrace.serving.handlers.assembly import HandlerPlan, install_packages, plan_handler, unpack_model
from headrace.serving.handlers.choice import HandlerChoice
from headrace.serving.handlers.environment import EnvironmentFailed
from headrace.serving.handlers.found import MANIFEST_FILE, Found, find_model
from headrace.serving.handlers.isolation import NO_ISOLATION, Isolation
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve import model_version
from headrace.serving.handlers.torchserve_archive import is_archive
from headrace.serving.handlers.torchserve_config import allowed_urls, variable, versions_of
from headrace.serving.wire.torchserve.management import ApiError, Registration
from headrace_handler.stray_files import listed

_URL: Final = re.compile(r"(file|https?)://", re.IGNORECASE)
_NO_MODELS: Final = ("none", "standalone")
_DOWNLOAD_S: Final = 3600.0
_LATE: Final = "The archive was not downloaded within {timeout_s:g} s. Use a smaller one."
_CHOICE: Final = HandlerChoice(contract="torchserve", reason="It is one of TorchServe's models.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupModel:
    """A model that is loaded at startup."""

    url: str
    """The location that the management API reports."""
    plan: HandlerPlan
    is_default: bool = False
    """The key `models` makes this version the default one."""


def holds_models(folder: Path) -> bool:
    """Return whether a folder that is not a model contains models, or other archives that `load_models` may name."""
    if not folder.is_dir() or (folder / MANIFEST_FILE).exists():
        return False
    return bool(_stored(folder)) or any(map(is_archive, listed(folder)))


def is_model_store(folder: Path, env: Mapping[str, str]) -> bool:
    """Return whether a folder that holds models is a store; with one model and no `load_models` it is that model."""
    return len(_stored(folder)) > 1 or bool(variable(env, "LOAD_MODELS"))


def is_default_version(spec: HandlerSpec, env: Mapping[str, str]) -> bool:
    """Return whether the key `models` makes the version of a model its default."""
    entry = versions_of(env, spec.model_name).get(model_version(spec.load.manifest), {})
    return entry.get("defaultVersion") is True


class ModelStore:
    """A folder of models, and the URLs from which others may be registered."""

    def __init__(
        self,
        folder: Path | None,
        *,
        env: Mapping[str, str],
        cache_folder: Path,
        family: str = "",
        num_gpus: int = 0,
        isolation: Isolation = NO_ISOLATION,
    ) -> None:
        """
        Create a store; without a folder only URLs can be registered.

        `env` has the keys of config.properties, and the defaults of the image's `family` apply.

        Raises:
            SettingsError: `allowed_urls` is invalid.
        """
        self.folder = folder
        self.env = env
        self._cache_folder = cache_folder
        self._family = family
        self._num_gpus = num_gpus
        self._isolation = isolation
        self._allowed = allowed_urls(env)

    def startup_models(self) -> list[StartupModel]:
        """
        Return the models that `load_models` names; without that key all models of the folder.

        Raises:
            SettingsError: a model cannot be found or its settings are invalid.
        """
        assert self.folder is not None, "models are loaded from a folder"
        names = variable(self.env, "LOAD_MODELS")
        if names.lower() in _NO_MODELS:
            return []
        if not names or names.lower() == "all":
            return [self._startup_model(path.name, None) for path in _stored(self.folder)]
        models = []
        for item in filter(None, map(str.strip, names.split(","))):
            name, separator, url = item.partition("=")
            models.append(self._startup_model(url if separator else name, name if separator else None))
        return models

    def find(self, registration: Registration) -> HandlerSpec:
        """
        Return the description of a model that a client registers, with its packages installed.

        Raises:
            ApiError: it cannot be found, or its packages cannot be installed.
            HeadraceError: its settings are invalid.
        """
        plan = self._plan(registration)
        assert plan.spec is not None, "the contract is given"
        with ExitStack() as undo:
            undo.callback(plan.spec.release)
            try:
                spec = install_packages(plan, self._cache_folder / "environments")
            except EnvironmentFailed as error:
                name = plan.spec.model_name
                get_logger().error("handler.packages_failed", model=name, reason=error.message)
                text = f"Custom pip package installation failed for model {name}"
                raise ApiError(400, "ModelException", text) from error
            undo.pop_all()
            return spec

    def _startup_model(self, url: str, name: str | None) -> StartupModel:
        try:
            plan = self._plan(Registration(url=url, model_name=name))
        except ApiError as error:
            raise SettingsError(f"load_models names {url!r}: {error.message}.", name="load_models") from error
        assert plan.spec is not None, "the contract is given"
        return StartupModel(url=url, plan=plan, is_default=is_default_version(plan.spec, self.env))

    def _plan(self, registration: Registration) -> HandlerPlan:
        archives = ContentCache(self._cache_folder / "archives")
        with ExitStack() as undo:
            undo.callback(archives.close)
            root = self._unpack(registration.url, archives)
            name = _default_name(registration.url)
            env = {**self.env, **_variables(registration)}
            found = find_model(root, model_name=name, env=env, family=self._family, num_gpus=self._num_gpus)
            found = replace(found, isolation=self._isolation)
            plan = plan_handler(_registered_as(found, registration), choice=_CHOICE)
            assert plan.spec is not None, "the contract is given"
            undo.pop_all()
        return replace(plan, spec=replace(plan.spec, cache_locks=(archives.close,)))

    def _unpack(self, url: str, archives: ContentCache) -> Path:
        with closing(ContentCache(self._cache_folder / "downloads")) as downloads:
            path = self._locate(url, downloads)
            if not path.is_dir() and not is_archive(path):
                raise ApiError(400, "ModelException", f"{path.name} is no archive; expected .mar, .tgz or .tar.gz.")
            return unpack_model(path, archives)

    def _locate(self, url: str, downloads: ContentCache) -> Path:
        scheme = _URL.match(url)
        if scheme is None:
            return self._stored(url)
        if not any(pattern.fullmatch(url) for pattern in self._allowed):
            raise _not_found(f"Given URL {url} does not match any allowed URL(s)")
        if scheme[1].lower() != "file":
            return self._download(url, downloads)
        path = Path(unquote(urlsplit(url).path))
        if not path.exists():
            raise _not_found(f"Model not found at: {url}")
        return path

    def _stored(self, url: str) -> Path:
        if self.folder is None:
            raise _not_found("Model store has not been configured.")
        path = self.folder / url
        if "\0" in url or not path.exists() or not path.resolve().is_relative_to(self.folder.resolve()):
            raise _not_found(f"Model not found in model store: {url}")
        return path

    def _download(self, url: str, cache: ContentCache) -> Path:
        fetcher = Fetcher(
            objects=partial(GrantedObjects, ()),
            cache=cache,
            scratch=cache.folder,
            deadline=Deadline(_DOWNLOAD_S, late=_LATE),
            follows_redirects=not variable(self.env, "ALLOWED_URLS"),
        )
        try:
            (file,) = fetcher.fetch(ArtifactSource(uri=url, is_archive=False)).iterdir()
        except FetchFailed as error:
            text = f"Failed to download archive from: {url}. {error}"
            raise ApiError(400, "DownloadArchiveException", text) from error
        return file


def _not_found(message: str) -> ApiError:
    return ApiError(404, "ModelNotFoundException", message)


def _stored(folder: Path) -> list[Path]:
    """Return the models that TorchServe loads without being told their names: other archives are named."""
    return [path for path in listed(folder) if path.suffix.lower() == ".mar" or (path / MANIFEST_FILE).is_file()]


def _default_name(url: str) -> str:
    """Return the name of a model whose manifest has none, as TorchServe makes it."""
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    stem = name.rpartition(".")[0] if ".mar" in name else name
    return re.sub(r"\W|^_", "_", stem or name)


def _variables(registration: Registration) -> dict[str, str]:
    """Return the parameters of a registration as variables, over which the model's files take precedence."""
    given = {
        "TS_BATCH_SIZE": registration.batch_size,
        "TS_MAX_BATCH_DELAY": registration.max_batch_delay_ms,
        "TS_RESPONSE_TIMEOUT": registration.response_timeout_s,
        "TS_DEFAULT_STARTUP_TIMEOUT": registration.startup_timeout_s,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _registered_as(found: Found, registration: Registration) -> Found:
    """Return a model under the name and with the handler that a client or its manifest gives it."""
    entry = found.manifest.get("model")
    model: dict[str, Any] = entry if isinstance(entry, dict) else {}
    name = registration.model_name or model.get("modelName") or found.model_name
    if not found.manifest:
        handler = {"TS_DEFAULT_SERVICE_HANDLER": registration.handler} if registration.handler else {}
        return replace(found, model_name=name, env={**found.env, **handler})
    if not model:
        return found
    changed = {**model, "modelName": name, "handler": registration.handler or model.get("handler")}
    return replace(found, model_name=str(name), manifest={**found.manifest, "model": changed})
