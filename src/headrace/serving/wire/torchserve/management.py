"""
TorchServe's management API: errors, sentences, and the parameters of its requests.

Source: pytorch/serve `frontend/server/src/main/java/org/pytorch/serve/util/ApiUtils.java` and
`http/HttpRequestHandler.java`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote

PAGE_SIZE: Final = 100
ALL_VERSIONS: Final = "all"


class ApiError(Exception):
    """A management request that fails, with the code and text that TorchServe gives it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message

    @property
    def body(self) -> bytes:
        return pretty({"code": self.status, "type": self.kind, "message": self.message})


def pretty(value: Any) -> bytes:
    """Render JSON as TorchServe does: with an indent, and a newline at its end."""
    return json.dumps(value, indent=2).encode() + b"\n"


def model_not_found(name: str) -> ApiError:
    return ApiError(404, "ModelNotFoundException", f"Model not found: {name}")


def version_not_found(name: str, version: str) -> ApiError:
    return ApiError(404, "ModelVersionNotFoundException", f"Model version: {version} does not exist for model: {name}")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequestException", message)


def not_found() -> ApiError:
    return ApiError(404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document.")


def registered(name: str, version: str, num_workers: int) -> str:
    hint = "" if num_workers else ". Use scale workers API to add workers for the model."
    return f'Model "{name}" Version: {version} registered with {num_workers} initial workers{hint}'


PROCESSING: Final = "Processing worker updates..."


def list_models(urls: Mapping[str, str], *, limit: str | None, next_page_token: str | None) -> dict[str, Any]:
    """Return a page of the models' names and the places that they were registered from."""
    names = sorted(urls)
    start = _number(next_page_token, 0)
    end = start + (_number(limit, PAGE_SIZE) or PAGE_SIZE)
    page: dict[str, Any] = {"nextPageToken": str(end)} if end < len(names) else {}
    return page | {"models": [{"modelName": name, "modelUrl": urls[name]} for name in names[start:end]]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The parameters of `POST /models`."""

    url: str
    model_name: str | None = None
    handler: str | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    initial_workers: int | None = None
    """None: as many as `default_workers_per_model` says."""
    is_synchronous: bool = True
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None


def read_registration(parameters: Mapping[str, Any]) -> Registration:
    """Read the parameters of a registration, of the query or a JSON body. Raises `ApiError`."""
    url = parameters.get("url")
    if not isinstance(url, str) or not url:
        raise bad_request("Parameter url is required.")
    if ".." in unquote(url):
        raise ApiError(404, "ModelNotFoundException", f"Relative path is not allowed in url: {url}")
    if (runtime := parameters.get("runtime")) not in (None, "python", "python3"):
        raise bad_request(f"Invalid model runtime: {runtime}")
    return Registration(
        url=url,
        model_name=_text(parameters, "model_name"),
        handler=_text(parameters, "handler"),
        batch_size=_count(parameters, "batch_size"),
        max_batch_delay_ms=_count(parameters, "max_batch_delay"),
        initial_workers=_count(parameters, "initial_workers"),
        is_synchronous=is_true(parameters.get("synchronous", True)),
        response_timeout_s=_count(parameters, "response_timeout"),
        startup_timeout_s=_count(parameters, "startup_timeout"),
    )


def is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _text(parameters: Mapping[str, Any], key: str) -> str | None:
    value = parameters.get(key)
    return str(value) if value not in (None, "") else None


def _count(parameters: Mapping[str, Any], key: str) -> int | None:
    """Return a number; None if it is absent or -1, which is TorchServe's default."""
    value = parameters.get(key)
    if value in (None, "", -1, "-1"):
        return None
    number = _number(value, -1)
    if number < 0:
        raise bad_request(f"Parameter {key} is {value!r}; expected a whole number, at least 0.")
    return number


def _number(value: Any, default: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        return default
    return number if 0 <= number < 1 << 31 else default


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A request to a model, as its path describes it."""

    model: str | None
    """None: the only model."""
    version: str | None = None
    """None: the model's default version."""
    mode: Literal["predict", "explain"] = "predict"
    rest: str = ""
    """The handler's `url_path`; a whole path where query parameters are data, too."""


def read_model_path(path: str) -> ModelCall | None:  # noqa: PLR0911 -- one return for each form of path
    """Return the model and the mode that the path of a request names; None: the path names no model."""
    segments = path.rstrip("/").split("/")[1:]
    match segments:
        case ["predictions" | "explanations" as name, model, *more]:
            mode = _mode(explains=name == "explanations")
            return ModelCall(model=model, version=more[0] if more else None, mode=mode, rest="/".join(more[1:]))
        case ["invocations"]:
            return ModelCall(model=None, rest=path)
        case ["models", model, "invoke"]:
            return ModelCall(model=model, rest=path)
        case ["v1", "models", name] if name.endswith((":predict", ":explain")):
            model, _, verb = name.rpartition(":")
            return ModelCall(model=model, mode=_mode(explains=verb == "explain"))
        case ["v2", "models", model, "infer" | "explain" as verb]:
            return ModelCall(model=model, mode=_mode(explains=verb == "explain"))
        case [model, "predict"]:
            return ModelCall(model=model, rest=path)
        case [model, version, "predict"]:
            return ModelCall(model=model, version=version, rest=path)
    return None


def _mode(*, explains: bool) -> Literal["predict", "explain"]:
    return "explain" if explains else "predict"
