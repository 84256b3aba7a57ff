"""
What an image URI means here: which model server is imitated, in which dialect, with which settings.

Pure: the name of the image decides, nothing is pulled. `docs/images.md` has the table of `FAMILIES` for people, and a
test compares the two. The registry in front of a name is not looked at, so that copies in one's own account work.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from headrace.wire.aws.errors import validation_error

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image that the user configured: a command of its own, or our model server with these settings."""

    command: tuple[str, ...] = ()
    """The command line of a server that speaks SageMaker's contract; `{port}` and `{model}` are filled in."""
    dialect: str = "auto"
    """Without `command`: what our model server speaks."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Without `command`: more flags of `headrace serve`, without their dashes."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set unless the model's own `Environment` sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProfile:
    """How a container of an image is run here."""

    family: str
    """`tgi`, `djl`, `torchserve`, ... (see `FAMILIES`), `own` or `unknown`."""
    version: str
    """Of the model server in the image (TorchServe: of PyTorch), as the tag says it; empty if it does not."""
    dialect: str
    """A name of `wire.registry`; `auto` leaves it to the settings; empty for a command of its own."""
    options: dict[str, str]
    """Flags of `headrace serve`, without their dashes; they beat all that the model and its environment say."""
    environment: dict[str, str]
    """The whole environment of the worker: the container's, without what cannot work here, and with our defaults."""
    command: tuple[str, ...]
    """Instead of our model server; empty for all but own images."""
    notices: tuple[str, ...]
    """What could not be honoured, in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Images that hold one kind of model server."""

    name: str
    title: str
    repository: re.Pattern[str]
    """Found in the name of the repository, without registry and tag."""
    version: re.Pattern[str]
    """Finds the server's version in a tag; its first group that matched is the version."""
    dialects: tuple[tuple[Version, str], ...]
    """From this version on: that dialect; the newest comes last and is taken where there is no version."""
    strict_environment: Mapping[str, str] = field(default_factory=dict)
    """Limits that the container has by itself and ours has not: set in strict mode."""
    remark: str = ""
    """What every user of the family should know; a notice."""


_NUMBER = r"[0-9]{1,9}"
_DJL_VERSION = re.compile(rf"^({_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?)(?:-|$)")
_LMI_VERSION = re.compile(rf"(?:^|-)lmi({_NUMBER})")
_ANY_VERSION = re.compile(rf"(?:^|[-_v])({_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})*)(?=[-_]|$)")
_STRICT = {"HEADRACE_EULA_CHECK": "gated"}
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
    ),
    Family(
        name="vllm",
        title="vLLM",
        repository=re.compile(r"(?:^|[-/])vllm"),
        version=_ANY_VERSION,
        dialects=(((0,), "openai"),),
    ),
    Family(
        name="sglang",
        title="SGLang",
        repository=re.compile(r"(?:^|[-/])sglang"),
        version=_ANY_VERSION,
        dialects=(((0,), "openai"),),
    ),
    Family(
        name="llama.cpp",
        title="llama.cpp",
        repository=re.compile(r"llama[.-]?cpp"),
        version=_ANY_VERSION,
        dialects=(((0,), "openai"),),
    ),
    Family(
        name="transformers",
        title="Hugging Face Inference Toolkit",
        repository=re.compile(r"(?:^|/)huggingface-pytorch-inference"),
        version=re.compile(rf"transformers({_NUMBER}(?:\.{_NUMBER})*)"),
        dialects=(((0,), "tgi-1.0"),),
        remark="Of the Hugging Face Inference Toolkit's tasks only text-generation is served, in TGI's form.",
    ),
    Family(
        name="torchserve",
        title="TorchServe",
        repository=re.compile(r"(?:^|/)(?:pytorch-inference|sagemaker-pytorch|torchserve)"),
        version=_ANY_VERSION,
        dialects=(((0,), "torchserve"),),
    ),
)

_KEYS_OF_SERVERS = ("API_KEY", "SM_VLLM_API_KEY", "HEADRACE_API_KEY")
"""Would lock the gateway out of the worker; on SageMaker they lock the platform out too."""


def profile(
    image: str, environment: Mapping[str, str], *, own_images: Mapping[str, OwnImage], is_strict: bool
) -> ImageProfile:
    """
    Decide how a container is run.

    Args:
        image: as in `CreateModel`: `[registry/]repository[:tag][@digest]`.
        environment: the container's `Environment`.
        own_images: by name; see `find_own`.
        is_strict: refuse images that are not known, and keep the limits that the real container has.

    Raises:
        AwsError: ValidationException, in strict mode, when the image is not known.
    """
    own = find_own(image, own_images)
    if own is not None:
        return _own_profile(own, environment)
    repository, tag = split_image(image)
    family = next((one for one in FAMILIES if one.repository.search(repository)), None)
    if family is None:
        return _unknown(image, environment, is_strict=is_strict)
    version, dialect, remark = _version_and_dialect(family, tag)
    completed, notices = _completed(environment, {**_STRICT, **family.strict_environment} if is_strict else {})
    if "neuron" in f"{repository}:{tag}":
        notices += ("Weights that were compiled for Neuron are not read: name a Hugging Face folder or a GGUF file.",)
    return _served(
        dialect,
        completed,
        family=family.name,
        version=version,
        notices=tuple(text for text in (family.remark, remark) if text) + notices,
    )


def split_image(image: str) -> tuple[str, str]:
    """The repository without its registry, and the tag (empty if there is none); a digest is left out."""
    name, _, _ = image.strip().partition("@")
    path, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    registry, slash, rest = f"{path}/{last}".lstrip("/").partition("/")
    has_registry = bool(slash) and (any(mark in registry for mark in ".:") or registry == "localhost")
    return (rest if has_registry else registry + slash + rest), tag


def find_own(image: str, own_images: Mapping[str, OwnImage]) -> OwnImage | None:
    """
    The own image that a URI names.

    A key is the URI itself, the URI without its tag, the repository without its registry (`team/server`), or a
    pattern with `*` and `?` for one of these. The most exact key wins: no pattern first, then the longest.
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
    """The version in a tag, its dialect, and a remark if there is something to say about that."""
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
        return "", newest, f"{shown} does not say which version of {family.title} it is: taken to speak {newest}."
    version = next(group for group in found.groups() if group)
    number = tuple(int(part) for part in version.split("."))
    return version, next(dialect for since, dialect in reversed(family.dialects) if number >= since), ""


def _completed(environment: Mapping[str, str], defaults: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment of our model server in a worker, and notices about what was taken out of it."""
    completed = {**defaults, "HEADRACE_CONTAINER": "true", **environment}
    dropped = [name for name in _KEYS_OF_SERVERS if completed.pop(name, "")]
    notices = (f"{name} has no effect: only the platform reaches the container." for name in dropped)
    return completed, tuple(notices)


def _served(
    dialect: str, environment: dict[str, str], *, family: str, version: str, notices: tuple[str, ...]
) -> ImageProfile:
    """Our model server; a dialect that the user set with our own name beats that of the image."""
    wanted = environment.get("HEADRACE_DIALECT", "").strip()
    is_given = dialect != "auto" and not wanted
    return ImageProfile(
        family=family,
        version=version,
        dialect=wanted or dialect,
        options={"dialect": dialect} if is_given else {},
        environment=environment,
        command=(),
        notices=notices,
    )


def _own_profile(own: OwnImage, environment: Mapping[str, str]) -> ImageProfile:
    if own.command:
        return ImageProfile(
            family="own",
            version="",
            dialect="",
            options={},
            environment={**own.environment, **environment},
            command=own.command,
            notices=(),
        )
    completed, notices = _completed(environment, own.environment)
    served = _served(own.dialect, completed, family="own", version="", notices=notices)
    return replace(served, options={**own.options, **served.options})


def _unknown(image: str, environment: Mapping[str, str], *, is_strict: bool) -> ImageProfile:
    if is_strict:
        raise validation_error(
            f"Requested image {image} not found. Known are images of {', '.join(one.title for one in FAMILIES)}; "
            "name a command for others in a file of own images (docs/images.md)."
        )
    completed, notices = _completed(environment, {})
    remark = (
        f"The image {image} is not known: Headrace's own model server takes its place. "
        "Name a command for it in a file of own images (docs/images.md) to run something else."
    )
    return _served("auto", completed, family="unknown", version="", notices=(remark, *notices))
