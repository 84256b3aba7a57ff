"""
Assembles the handler of a model's code: its contract, its interpreter and the environment of its processes.

`plan_handler` is pure; `unpack_model` and `install_packages` block.

Code gets the environment of its model server without Headrace's own variables. Credentials that the server was given
for the model, such as `HF_TOKEN` or the keys of a role, are passed on, as SageMaker passes them to its containers; a
platform's worker is given none of the platform's credentials (`cluster.worker_environment`).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.threads import usable_cpus
from headrace.serving.artifacts.content_cache import ContentCache, content_key
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.handlers import djl, sagemaker, torchserve
from headrace.serving.handlers.choice import HandlerChoice, HandlerMode, choose
from headrace.serving.handlers.environment import EnvironmentMaker, inspect_base
from headrace.serving.handlers.found import MANIFEST_FILE, Found
from headrace.serving.handlers.isolation import NO_ISOLATION, Isolation
from headrace.serving.handlers.requirements_file import has_neuron_device, neuron_lines, read_requirements
from headrace.serving.handlers.spec import ContractName, HandlerSpec
from headrace.serving.handlers.torchserve_archive import files_folder, is_archive, unpack_archive
from headrace.serving.handlers.torchserve_config import visible_environment
from headrace.serving.http.otlp import SECRETS as EXPORT_SECRETS
from headrace.serving.settings.container_meanings import Fills
from headrace.serving.settings.container_names import read_container_names
from headrace.serving.settings.container_tables import ENVIRONMENT, FLAGS
from headrace.serving.settings.container_values import NO_NEURON
from headrace.serving.settings.loading import CODE_ENV_NAMES
from headrace.serving.settings.values import ENV_PREFIX
from headrace_handler.container_folders import CHANNELS, CODE, MODEL
from headrace_handler.policy import restored
from headrace_handler.stray_files import listed

_LIBRARIES: Final = Path("/lib")
_SHARED_LIBRARIES: Final = "shared_libs"
"""Folder of a model whose files the program of SageMaker SDK 3 copies to `/lib`, a folder of the host."""
REQUIREMENTS_FILE: Final = "requirements.txt"
_INSTALL_S: Final = 1800.0
"""Time limit for installing packages, which real containers do before their load timeout begins."""
_MAKERS: Final[Mapping[ContractName, Callable[[Found], HandlerSpec]]] = {
    "djl": djl.make_spec,
    "torchserve": torchserve.make_spec,
    "sagemaker": sagemaker.make_spec,
}
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerPlan:
    """The code that serves a model."""

    choice: HandlerChoice
    spec: HandlerSpec | None = None
    """None: no code runs; with `choice.formatters` it runs around Headrace's engine."""
    requirements: Path | None = None
    """File with the packages that the code asks for."""
    is_offline: bool = False
    """Install packages from the model's files only."""
    root: Path = Path()
    """The model's folder."""
    isolation: Isolation = NO_ISOLATION
    """The sandbox of the code, and of the installer of its packages."""


def plan_handler(found: Found, mode: HandlerMode = "auto", *, choice: HandlerChoice | None = None) -> HandlerPlan:
    """
    Decide what serves a model, and the settings of its code; `choice` is a decision already made.

    Raises:
        SettingsError: a setting of the model's contract is invalid, or `mode` is `handler` and there is no code.
    """
    choice = choice or choose(found, mode)
    if choice.contract is None:
        return HandlerPlan(choice=choice)
    made = _MAKERS[choice.contract](found)
    if choice.formatters:  # one process: all tokens of a response must reach the same child
        load = replace(made.load, entry=choice.formatters)
        made = replace(made, load=load, min_workers=1, max_workers=1)
    python = found.option("pythonexecutable") or found.option("python_executable", "PYTHON_EXECUTABLE")
    # Code never sees Headrace's own variables; TorchServe's `blacklist_env_vars` hides further ones.
    inherited = visible_environment(found.env) if choice.contract == "torchserve" else found.env
    environment = child_environment(inherited) | dict(made.environment)  # such as those of DJL's option.env
    spec = replace(
        made,
        python=Path(python or sys.executable),
        environment=environment
        | share_of_threads(environment, num_children=made.max_workers, num_cores=len(usable_cpus())),
        num_gpus=found.num_gpus,
        container_folders=container_folders(found),
        private_folders=[_LIBRARIES] if (found.root / _SHARED_LIBRARIES).is_dir() else (),
    )
    file = _requirements_file(found, choice.contract)
    return HandlerPlan(
        choice=choice,
        spec=spec,
        requirements=file if file is not None and file.is_file() else None,
        is_offline=found.env.get("SERVING_OFFLINE", "").strip().lower() in _TRUE,
        root=found.root,
        isolation=found.isolation,
    )


def unpack_model(path: Path, cache: ContentCache) -> Path:
    """
    Return the folder of a model; a TorchServe archive, or a folder with nothing but one, is unpacked first.

    Raises:
        SettingsError: the archive cannot be unpacked.
    """
    archives = [path] if is_archive(path) else listed(path, ["*.[mM][aA][rR]"])
    if len(archives) != 1 or (path / MANIFEST_FILE).exists():
        return path
    (archive,) = archives
    facts = archive.stat()
    key = content_key("archive", archive.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino)
    name = archive.name.partition(".")[0] or "model"

    def fill(folder: Path) -> None:
        (folder / name).mkdir()
        unpack_archive(archive, folder / name)

    try:
        folder = cache.entry(key, fill, Deadline(_INSTALL_S)) / name
    except FetchFailed as error:
        raise SettingsError(str(error), name="model") from error
    return files_folder(folder)


def container_folders(found: Found) -> dict[Path, Path]:
    """Return the folders that code for SageMaker opens by their paths in the containers."""
    code = {} if found.code == found.root else {CODE: found.code}
    channels = {CHANNELS / name: folder for name, folder in found.channels.items()}
    return {MODEL: found.root, **code, **channels}


def install_packages(plan: HandlerPlan, cache_folder: Path) -> HandlerSpec:
    """
    Install the packages that the code needs; return the spec with the interpreter that has them, and its sandbox.

    Raises:
        EnvironmentFailed: they cannot be installed, or the interpreter cannot be run.
        SettingsError: a requirements file is too large.
    """
    assert plan.spec is not None, "the plan has code"
    requirements = read_requirements(plan.requirements) if plan.requirements is not None else None
    if requirements is None:
        return plan.isolation.isolate(plan.spec, plan.root)
    if plan.isolation.is_on:  # the installer reads the folder of the file
        plan.isolation.refuse_outside([requirements.file], [plan.root])
    cache = ContentCache(cache_folder)
    maker = EnvironmentMaker(
        cache=cache,
        timeout_s=_INSTALL_S,
        variables=plan.spec.environment,
        is_offline=plan.is_offline,
        model_name=plan.spec.model_name,
        isolation=plan.isolation,
        root=plan.root,
    )
    base, own = plan.spec.python, [plan.root, requirements.file.parent]
    runner = () if str(base) == sys.executable else plan.isolation.runner(own, base)
    python = Path(maker.python_for(requirements, inspect_base(str(base), runner)))
    isolated = plan.isolation.isolate(plan.spec, plan.root, environment=python.parent.parent)
    return replace(isolated, python=python, cache_locks=(*plan.spec.cache_locks, cache.close))


def describe_python(plan: HandlerPlan) -> tuple[str, list[str]]:
    """
    Return a sentence about the Python that runs the code, and sentences about Neuron settings without effect.

    Raises:
        SettingsError: a requirements file is too large.
        OSError: a requirements file cannot be read.
    """
    assert plan.spec is not None, "the plan has code"
    python = "Headrace's Python" if plan.spec.python == Path(sys.executable) else str(plan.spec.python)
    file = plan.requirements
    requirements = read_requirements(file) if file is not None else None
    packages = "" if requirements is None else f", with the packages of {requirements.file.name} in an environment"
    sentence = f"It runs in {python}{packages}."
    if has_neuron_device():
        return sentence, []
    left_out = neuron_lines(file) if file is not None else ()
    names = [f"{line} of {REQUIREMENTS_FILE} is not installed: {NO_NEURON.why}." for line in left_out]
    variables = {name: value for name, value in plan.spec.environment.items() if name.startswith("NEURON")}
    notices = read_container_names(variables, {}, container=True).notices
    return sentence, [*names, *(notice.message for notice in notices)]


def child_environment(server: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the model server's environment that user code gets."""
    own = {*_SERVER_KEYS, *EXPORT_SECRETS}
    kept = {
        name: value
        for name, value in restored(server).items()
        if name not in own and (not name.startswith(ENV_PREFIX) or name in CODE_ENV_NAMES)
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


def share_of_threads(environment: Mapping[str, str], *, num_children: int, num_cores: int) -> dict[str, str]:
    """Return the variable that divides the cores among children; nothing for one child or if it is already set."""
    if num_children < 2 or environment.get(THREADS_VARIABLE):
        return {}
    return {THREADS_VARIABLE: str(max(1, num_cores // num_children))}


def _requirements_file(found: Found, contract: ContractName) -> Path | None:
    """Return the requirements file of the contract's server; it need not exist."""
    if contract == "sagemaker":
        return found.code / REQUIREMENTS_FILE
    if contract == "djl":
        return found.root / REQUIREMENTS_FILE
    named = (found.manifest.get("model") or {}).get("requirementsFile")
    is_off = found.env.get("TS_INSTALL_PY_DEP_PER_MODEL", "").strip().lower() in _FALSE
    return found.root / str(named) if named and not is_off else None
