"""
Map an image URI to a profile: the model server to emulate, its dialect and its settings.

The name of the image decides, nothing is pulled. `docs/images.md` documents the table of `FAMILIES`, and a test
compares the two. The registry is ignored, so that copies in a private registry work.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from headrace.serving.wire.aws.errors import validation_error

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image configured by the user: a custom command, or Headrace's model server with these settings."""

    command: tuple[str, ...] = ()
    """The command line of a server that implements SageMaker's contract; `{port}` and `{model}` are substituted."""
    is_container: bool = False
    """Run the image itself with Docker or Podman."""
    dialect: str = "auto"
    """Without `command`: the dialect of the model server."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Without `command`: additional flags of `headrace serve`, without dashes."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set unless the model's own `Environment` sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProfile:
    """The server, settings and environment that a container of an image runs with."""

    family: str
    """`tgi`, `djl`, `torchserve`, ... (see `FAMILIES`), `own` or `unknown`."""
    version: str = ""
    """Version of the model server in the image (TorchServe: of PyTorch) from the tag; empty if the tag has none."""
    dialect: str = ""
    """A name of `wire.registry`; `auto` leaves it to the settings; empty for a custom command and for code alone."""
    options: dict[str, str] = field(default_factory=dict)
    """Flags of `headrace serve`, without dashes; they override the model's settings and the environment."""
    environment: dict[str, str]
    """The whole environment of the worker: the container's without unsupported variables, and defaults."""
    command: tuple[str, ...] = ()
    """Command that replaces Headrace's model server; empty except for own images."""
    container: str = ""
    """The image to run as a container; empty: a process of this host serves."""
    notices: tuple[str, ...] = ()
    """Sentences about settings that could not be honoured."""


_NUMBER = r"[0-9]{1,9}"
_DJL_VERSION = re.compile(rf"^({_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?)(?:-|$)")
_LMI_VERSION = re.compile(rf"(?:^|-)lmi({_NUMBER})")
_ANY_VERSION = re.compile(rf"(?:^|[-_v])({_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})*)(?=[-_]|$)")
_REFERENCE = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
"""The characters of a name of an image. Source: Distribution, `reference/regexp.go`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The images of one kind of model server."""

    name: str
    title: str
    repository: re.Pattern[str]
    """Searched in the name of the repository, without registry and tag."""
    version: re.Pattern[str] = _ANY_VERSION
    """Matches the server's version in a tag; the first group that matched is the version."""
    dialects: tuple[tuple[Version, str], ...] = (((0,), "openai"),)
    """
    First version of each dialect, in ascending order; the last one is the default for tags without a version. An empty
    dialect: the images only run code.
    """
    strict_environment: Mapping[str, str] = field(default_factory=dict)
    """Limits of the real container that Headrace does not have by default; set in strict mode."""
    engine: str = ""
    """Engine of the image, as a value of `rolling_batch`; empty: the image has several, or its own."""
    engine_variable: str = "HEADRACE_ROLLING_BATCH"
    """Variable that tells the worker the engine; an engine named in the model's configuration takes precedence."""
    split_variable: str = ""
    """Variable that splits the model over all GPUs of the worker, as the container does; empty: it uses one."""
    remark: str = ""
    """A notice for every user of the family."""


_STRICT = {"HEADRACE_EULA_CHECK": "gated", "HEADRACE_STRICT_BACKEND": "true"}
_ENGINE_MARKS = {"tensorrtllm": "trtllm", "trtllm": "trtllm", "neuron": "tnx"}
"""Parts of repositories and tags that name the engine of an image, whatever its family."""
SPLIT_VARIABLES = (
    "HEADRACE_TENSOR_PARALLEL_SIZE",
    "OPTION_TENSOR_PARALLEL_DEGREE",
    "TENSOR_PARALLEL_DEGREE",
    "SM_VLLM_TENSOR_PARALLEL_SIZE",
    *("SM_SGLANG_TP", "SM_SGLANG_TP_SIZE", "SM_SGLANG_TENSOR_PARALLEL_SIZE"),
    "SM_NUM_GPUS",
    "NUM_SHARD",
)
"""Variables of containers for the number of GPUs over which a model is split, in order of precedence."""
_STAGE_VARIABLES = (
    *("OPTION_PIPELINE_PARALLEL_DEGREE", "SM_VLLM_PIPELINE_PARALLEL_SIZE", "PIPELINE_PARALLEL_DEGREE"),
    *("SM_SGLANG_PP", "SM_SGLANG_PP_SIZE", "SM_SGLANG_PIPELINE_PARALLEL_SIZE"),
)
"""Variables of containers for the number of pipeline stages, each of which is split."""
_ENGINE_VARIABLES = ("OPTION_ROLLING_BATCH", "HEADRACE_ROLLING_BATCH", "HEADRACE_BACKEND")
_TGI_LIMITS = {
    "MAX_BEST_OF": "2",
    "MAX_STOP_SEQUENCES": "4",
    "MAX_TOP_N_TOKENS": "5",
    "MAX_CONCURRENT_REQUESTS": "128",
}
"""Source: TGI `launcher/src/main.rs`."""

DJL = Family(
    name="djl",
    title="DJL Serving, LMI",
    repository=re.compile(r"(?:^|[-/])djl[-_](?:inference|serving)"),
    version=_DJL_VERSION,
    dialects=(((0,), "lmi-0.25"), ((0, 26), "lmi-0.26"), ((0, 27), "lmi-0.27"), ((0, 35), "lmi-17")),
    strict_environment={"MAX_CONCURRENT_REQUESTS": "1000"},
    engine_variable="OPTION_ROLLING_BATCH",  # the model's serving.properties takes precedence
    split_variable="OPTION_TENSOR_PARALLEL_DEGREE",
)

FAMILIES: tuple[Family, ...] = (
    DJL,
    Family(
        name="tgi",
        title="Text Generation Inference",
        repository=re.compile(r"tgi-inference|text-generation-inference"),
        version=re.compile(
            rf"(?:tgi|optimum(?=[1-9]))({_NUMBER}(?:\.{_NUMBER})*)|^v?({_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})*)$"
        ),
        dialects=(((0,), "tgi-1.0"), ((1, 4), "tgi-3")),
        strict_environment=_TGI_LIMITS,
        split_variable="NUM_SHARD",
    ),
    Family(
        name="tei",
        title="Text Embeddings Inference",
        repository=re.compile(r"(?:^|/)(?:huggingface-)?tei(?:-|$)|text-embeddings-inference"),
        version=re.compile(rf"(?:tei|cpu-|^)({_NUMBER}(?:\.{_NUMBER})+)"),
        dialects=(((0,), "tei"),),
    ),
    Family(
        name="vllm",
        title="vLLM",
        repository=re.compile(r"(?:^|[-/])vllm"),
        engine="vllm",
    ),
    Family(
        name="sglang",
        title="SGLang",
        repository=re.compile(r"(?:^|[-/])sglang"),
    ),
    Family(
        name="llama.cpp",
        title="llama.cpp",
        repository=re.compile(r"llama[.-]?cpp"),
    ),
    Family(
        name="transformers",
        title="Hugging Face Inference Toolkit",
        repository=re.compile(r"(?:^|/)huggingface-pytorch-inference"),
        version=re.compile(rf"transformers({_NUMBER}(?:\.{_NUMBER})*)"),
        dialects=(((0,), "hf-toolkit"),),
        remark="Headrace's engine answers text-generation, feature-extraction and text-classification as the toolkit "
        "does; other tasks of HF_TASK and code/inference.py run as in the toolkit.",
    ),
    Family(
        name="torchserve",
        title="TorchServe",
        repository=re.compile(r"(?:^|/)(?:pytorch-inference|sagemaker-pytorch|torchserve)"),
        dialects=(((0,), "torchserve"),),
    ),
    Family(
        name="sklearn",
        title="SageMaker's scikit-learn container",
        repository=re.compile(r"(?:^|/)sagemaker-scikit-learn"),
        dialects=(((0,), ""),),
    ),
    Family(
        name="xgboost",
        title="SageMaker's XGBoost container",
        repository=re.compile(r"(?:^|/)(?:sagemaker-)?xgboost"),
        dialects=(((0,), ""),),
    ),
)

_KEYS_OF_SERVERS = ("API_KEY", "SM_VLLM_API_KEY", "SM_SGLANG_API_KEY", "SM_LLAMA_CPP_API_KEY", "HEADRACE_API_KEY")
"""Variables that would make the worker refuse the gateway's requests, as they make containers refuse SageMaker's."""


def profile(
    image: str, environment: Mapping[str, str], *, own_images: Mapping[str, OwnImage], is_strict: bool
) -> ImageProfile:
    """
    Return the profile with which a container is run.

    Strict mode refuses unknown images by a ValidationException, and keeps the limits of the real container.
    """
    own = find_own(image, own_images)
    if own is not None:
        return _own_profile(own, image, environment)
    repository, tag = split_image(image)
    family = next((candidate for candidate in FAMILIES if candidate.repository.search(repository)), None)
    if family is None:
        return _unknown(image, environment, is_strict=is_strict)
    version, dialect, remark = _version_and_dialect(family, tag)
    asked = {**environment, **_engine(family, f"{repository}:{tag}", environment), **_split(family, environment)}
    completed, notices = _completed(asked, {**_STRICT, **family.strict_environment} if is_strict else {})
    if "neuron" in f"{repository}:{tag}":
        notices += ("Weights that were compiled for Neuron are not read: name a Hugging Face folder or a GGUF file.",)
    return _served(
        dialect,
        completed,
        family=family.name,
        version=version,
        notices=tuple(text for text in (family.remark, remark) if text) + notices,
    )


def split_degree(image: ImageProfile) -> str:
    """Return the degree of tensor parallelism that a worker's settings name; empty: the default, one GPU."""
    return image.options.get("tensor_parallel_size", "") or _first_given(image.environment, SPLIT_VARIABLES)


def num_split_gpus(image: ImageProfile) -> int:
    """Return the number of GPUs that a worker's settings split the model over; 0: all that it gets, or not named."""
    degree, stages = split_degree(image), _first_given(image.environment, _STAGE_VARIABLES)
    return _count(degree) * (_count(stages) or 1)


def split_image(image: str) -> tuple[str, str]:
    """Return the repository without its registry, and the tag (empty if there is none); drop the digest."""
    name, _, _ = image.strip().partition("@")
    path, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    registry, slash, rest = f"{path}/{last}".lstrip("/").partition("/")
    has_registry = bool(slash) and (any(mark in registry for mark in ".:") or registry == "localhost")
    return (rest if has_registry else registry + slash + rest), tag


def find_own(image: str, own_images: Mapping[str, OwnImage]) -> OwnImage | None:
    """
    Return the own image that a URI matches, or None.

    A key is the URI itself, the URI without its tag, the repository without its registry (`team/server`), or a
    pattern with `*` and `?` for one of these. The most specific key wins: no pattern first, then the longest.
    """
    name = image.strip()
    repository, tag = split_image(name)
    without_digest = name.partition("@")[0]
    without_tag = without_digest.removesuffix(f":{tag}") if tag else without_digest
    forms = [name, without_digest, without_tag, f"{repository}:{tag}", repository]
    for form in forms:
        if form in own_images:
            return own_images[form]
    fitting = [key for key in own_images if any(fnmatchcase(form, key) for form in forms)]
    return own_images[max(fitting, key=lambda key: (len(key), key))] if fitting else None


def _version_and_dialect(family: Family, tag: str) -> tuple[str, str, str]:
    """Return the version in a tag, its dialect, and a remark or an empty string."""
    newest = family.dialects[-1][1]
    if family is DJL and (lmi := _LMI_VERSION.search(tag)) is not None:
        djl = _DJL_VERSION.search(tag)
        version = f"{djl[1]}-lmi{lmi[1]}" if djl is not None else f"lmi{lmi[1]}"
        return version, "lmi-17" if int(lmi[1]) >= 17 else "lmi-0.27", ""
    found = family.version.search(tag)
    if found is None:
        if len(family.dialects) == 1:
            return "", newest, ""
        shown = f"The tag {tag!r}" if tag else "An image without a tag"
        return "", newest, f"{shown} does not say which version of {family.title} it is: {newest} is assumed."
    version = next(group for group in found.groups() if group)
    number = tuple(int(part) for part in version.split("."))
    return version, next(dialect for since, dialect in reversed(family.dialects) if number >= since), ""


def _engine(family: Family, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that tells the worker the engine of an image, unless the container's own names one."""
    engine = next((engine for mark, engine in _ENGINE_MARKS.items() if mark in name), family.engine)
    given = [environment.get(variable, "").strip().lower() for variable in _ENGINE_VARIABLES]
    return {} if not engine or any(value not in ("", "auto") for value in given) else {family.engine_variable: engine}


def _split(family: Family, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that splits the model as the container does, unless the environment names a degree."""
    if not family.split_variable or _first_given(environment, SPLIT_VARIABLES):
        return {}
    is_whole = environment.get("SHARDED", "").strip().lower() == "false"
    return {family.split_variable: "1" if is_whole else "max"}


def _first_given(environment: Mapping[str, str], names: Iterable[str]) -> str:
    return next(filter(None, (environment.get(name, "").strip() for name in names)), "")


def _count(text: str) -> int:
    """Parse a number of GPUs or stages; return 0 for any other text, which the worker's settings validate."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _completed(environment: Mapping[str, str], defaults: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment of the model server in a worker, and notices about removed variables."""
    completed = {**defaults, "HEADRACE_CONTAINER": "true", **environment}
    dropped = [name for name in _KEYS_OF_SERVERS if completed.pop(name, "")]
    notices = (f"{name} has no effect: only the platform reaches the container." for name in dropped)
    return completed, tuple(notices)


def _served(
    dialect: str, environment: dict[str, str], *, family: str, version: str, notices: tuple[str, ...]
) -> ImageProfile:
    """Return the profile of Headrace's model server; a dialect set by the user overrides that of the image."""
    wanted = environment.get("HEADRACE_DIALECT", "").strip()
    is_given = dialect not in ("auto", "") and not wanted
    return ImageProfile(
        family=family,
        version=version,
        dialect=wanted or dialect,
        options={"dialect": dialect} if is_given else {},
        environment=environment,
        notices=notices,
    )


def _own_profile(own: OwnImage, image: str, environment: Mapping[str, str]) -> ImageProfile:
    if own.command or own.is_container:
        container = image.strip() if own.is_container else ""
        if container and not _REFERENCE.fullmatch(container):  # one that begins with `-` is an option of the engine
            raise validation_error(f"The image {image!r} has no valid name; expected REGISTRY/REPOSITORY:TAG.")
        environment = {**own.environment, **environment}
        return ImageProfile(family="own", environment=environment, command=own.command, container=container)
    completed, notices = _completed(environment, own.environment)
    served = _served(own.dialect, completed, family="own", version="", notices=notices)
    return replace(served, options={**own.options, **served.options})


def _unknown(image: str, environment: Mapping[str, str], *, is_strict: bool) -> ImageProfile:
    if is_strict:
        raise validation_error(
            f"Requested image {image} not found. Known are images of {', '.join(family.title for family in FAMILIES)}; "
            "name a command for others in a file of own images (docs/images.md)."
        )
    completed, notices = _completed(environment, {})
    remark = (
        f"The image {image} is not known: Headrace's own model server runs instead. "
        "Name a command for it in a file of own images (docs/images.md) to run something else."
    )
    return _served("auto", completed, family="unknown", version="", notices=(remark, *notices))
