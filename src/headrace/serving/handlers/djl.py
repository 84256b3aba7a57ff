"""Describes a handler of DJL Serving by `serving.properties` and the variables `OPTION_*` and `SERVING_*`. Pure."""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import Found
from headrace.serving.handlers.spec import HandlerSpec, RestartPolicy
from headrace.serving.settings.model_folder import in_folder
from headrace_handler.contract import Load

_OPTION: Final = "option."
_MAX_BATCH_SIZE: Final = 999
"""The keys of a batch have three digits."""
_RETRY_THRESHOLD: Final = 10
"""As in djl-serving up to 0.26; later versions give up at the first failure."""
_OFF: Final = ("", "disable", "false")


def make_spec(found: Found) -> HandlerSpec:
    """Return the handler of a model. Raises `SettingsError`: a setting is out of its range."""
    settings = _Settings(_properties(found), found.env)
    is_image = found.family == "djl"
    options = settings.options(found.root)
    is_rolling = options.get("rolling_batch", "").lower() not in _OFF
    is_async = is_rolling or options.get("async_mode", "").lower() == "true"
    # A model that batches by itself, or has a device of its own, has one worker unless a setting says otherwise.
    one_worker = is_async or found.num_gpus > 0 or options.get("tensor_parallel_degree", "1") != "1"
    most = settings.workers("maxWorkers", found.num_gpus, default=1 if one_worker else 2)
    least = settings.workers("minWorkers", found.num_gpus, default=1)
    python = settings.text("option.pythonExecutable", "PYTHON_EXECUTABLE")
    return HandlerSpec(
        contract="djl",
        load=Load(
            model_name=found.model_name,
            model_dir=found.root,
            entry=settings.text("option.entryPoint", "DJL_ENTRY_POINT"),
            options=options,
            device=0 if found.num_gpus else None,
            batch_size=1 if is_async else settings.batch_size(),
        ),
        python=Path(python or sys.executable),
        environment=dict(settings.environment()),
        min_workers=min(least, most),
        max_workers=most,
        max_idle_s=settings.number("max_idle_time", "SERVING_MAX_IDLE_TIME", default=60),
        queue_size=settings.number("job_queue_size", "SERVING_JOB_QUEUE_SIZE", default=1000),
        max_batch_delay_ms=settings.number("max_batch_delay", "SERVING_MAX_BATCH_DELAY", default=100, least=0),
        max_calls_per_worker=settings.number("option.max_rolling_batch_size", default=32 if is_rolling else 64),
        load_timeout_s=settings.number(
            "option.model_loading_timeout", "MODEL_LOADING_TIMEOUT", default=1200 if is_image else 240
        ),
        call_timeout_s=settings.number("option.predict_timeout", "PREDICT_TIMEOUT", default=240 if is_image else 120),
        chunk_timeout_s=settings.number("chunked_read_timeout", "SERVING_CHUNKED_READ_TIMEOUT", default=120),
        restart=RestartPolicy(
            max_failures=settings.number(
                "retry_threshold", "SERVING_RETRY_THRESHOLD", default=_RETRY_THRESHOLD, least=0
            )
        ),
    )


def _properties(found: Found) -> dict[str, str]:
    """Return the properties; `OPTION_*` variables and old names fill what the file leaves out."""
    properties = {name.strip(): value.strip() for name, value in found.properties.items()}
    names = {name.lower() for name in properties}
    for name, value in found.env.items():
        if not value or not name.startswith("OPTION_"):
            continue
        option = name.removeprefix("OPTION_")
        option = option.lower() if option.isupper() else option
        key = "engine" if option == "engine" else f"{_OPTION}{'entryPoint' if option == 'entrypoint' else option}"
        if key.lower() not in names:
            properties[key] = value
    model_id = properties.get("option.model_id") or properties.get("option.s3url") or found.env.get("HF_MODEL_ID", "")
    return properties | ({"option.model_id": model_id} if model_id else {})


@dataclass(frozen=True, slots=True)
class _Settings:
    properties: Mapping[str, str]
    env: Mapping[str, str]

    def text(self, name: str, variable: str = "") -> str:
        """Return a property (case-insensitive), else a variable, else an empty string."""
        found = next((value for key, value in self.properties.items() if key.lower() == name.lower()), "")
        return found or self.env.get(variable, "").strip()

    def number(self, name: str, variable: str = "", *, default: int, least: int = 1, most: float = math.inf) -> int:
        raw = self.text(name, variable)
        if not raw:
            return default
        if not raw.isdecimal() or not least <= int(raw) <= most:
            limit = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
            raise SettingsError(f"{name} is {raw!r}; expected a whole number {limit}.", name=name)
        return int(raw)

    def workers(self, name: str, num_gpus: int, *, default: int) -> int:
        """Return a number of workers: the setting of the device, else the general one, else the server's."""
        variable = {"minWorkers": "SERVING_MIN_WORKERS", "maxWorkers": "SERVING_MAX_WORKERS"}[name]
        device = f"{'gpu' if num_gpus else 'cpu'}.{name}"
        return self.number(device if self.text(device) else name, variable, default=default)

    def batch_size(self) -> int:
        name = "batch_size" if self.text("batch_size") else "max_dynamic_batch_size"
        return self.number(name, "SERVING_BATCH_SIZE", default=1, most=_MAX_BATCH_SIZE)

    def options(self, root: Path) -> dict[str, str]:
        """Return the properties for the handler's first call: options without their prefix, and all others."""
        options = {
            key.removeprefix(_OPTION): value for key, value in self.properties.items() if key.lower() != "option.env"
        }
        model_id = options.get("model_id")
        return options | ({"model_id": in_folder(model_id, root=root, folder=root)} if model_id else {})

    def environment(self) -> Iterator[tuple[str, str]]:
        """Yield the variables of `option.env=NAME=value,NAME=value`."""
        for pair in filter(None, self.text("option.env").split(",")):
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise SettingsError(
                    f"option.env has {pair!r}; expected NAME=value, separated by commas.", name="option.env"
                )
            yield name.strip(), value.strip()
