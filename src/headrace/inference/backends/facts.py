"""The facts that the choice of a backend depends on, read from the files of a model and from this host."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace.core.engine_names import BACKENDS
from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.gpus import visible_gpus
from headrace.inference.backends.choice import HostFacts, ModelFacts
from headrace.inference.backends.libraries import (
    TransformersTables,
    VllmTables,
    package_version,
    transformers_tables,
    vllm_tables,
)
from headrace.inference.backends.quantization import Quantization, quantization_of
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_config
from headrace.inference.models.quantized.registry import refuse_other_quantization
from headrace.inference.models.sentence_transformers import has_lm_head

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "native": (),
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm",),
}
"""The packages that each backend imports."""
GPU_BACKENDS: Final = ("vllm", "torch", "transformers")
_POOLED_TASKS: Final = ("embed", "score", "features")


def host_facts(environment: Mapping[str, str]) -> HostFacts:
    """Return the facts about this host; no package is imported, which would take seconds."""
    installed = frozenset(name for name in BACKENDS if is_installed(name))
    return HostFacts(
        installed=installed,
        versions={name: package_version(name) for name in ("transformers", "vllm") if _is_importable(name)},
        num_gpus=len(visible_gpus(environment)),
    )


def runs_on_gpu(environment: Mapping[str, str]) -> bool:
    """Return whether this process sees a GPU and a backend that uses it is installed."""
    return any(map(is_installed, GPU_BACKENDS)) and bool(visible_gpus(environment))


def is_installed(backend: str) -> bool:
    return all(map(_is_importable, PACKAGES[backend]))


def _is_importable(package: str) -> bool:
    """Return whether a package can be imported; only the parents of a subpackage are imported."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def model_facts(path: Path, *, task: str = "auto") -> ModelFacts:
    """Return the facts about a model for a task of `ModelSource`; raises `BrokenModel` without a valid config.json."""
    is_pooled = task in _POOLED_TASKS
    if path.is_file():
        return ModelFacts(is_gguf=True, is_pooled=is_pooled)
    config = read_config(path)
    # Some checkpoints say themselves that they compute vectors or scores, not text.
    only_pools = task == "auto" and ((path / "modules.json").is_file() or not has_lm_head(config))
    return replace(
        library_facts(config, transformers_tables(), vllm_tables()),
        own_error=_own_error(config),
        is_pooled=is_pooled or only_pools,
    )


def library_facts(config: Fields, transformers: TransformersTables | None, vllm: VllmTables | None) -> ModelFacts:
    """Return the facts in config.json for transformers and vLLM, whose tables are None if they are unknown."""
    model_type = config.text("model_type", "")
    architectures = config.texts("architectures")
    own_code = config.values.get("auto_map")
    in_transformers = transformers is None or model_type in transformers.classes
    return ModelFacts(
        architecture=next(iter(architectures), ""),
        model_type=model_type,
        has_own_code=isinstance(own_code, Mapping) and any(name.startswith("AutoModel") for name in own_code),
        in_transformers=in_transformers,
        in_vllm=vllm is None
        or bool(vllm.architectures.intersection(architectures))
        or transformers is None
        or transformers.runs_in_vllm(model_type),
        keeps_state=transformers is not None and in_transformers and transformers.keeps_state(model_type),
        quantization=_quantization(config, transformers),
        is_encoder_decoder=config.flag("is_encoder_decoder", default=False),
    )


def _quantization(config: Fields, transformers: TransformersTables | None) -> Quantization | None:
    if not config.has("quantization_config"):
        return None
    settings = config.sub("quantization_config")
    return quantization_of(
        settings.text("quant_method", ""), transformers.quantizers if transformers else frozenset(), _is_importable
    )


def _own_error(config: Fields) -> str | None:
    """Return why our own networks do not run a model, or None; loading reports all other errors."""
    try:
        from_config(config)
        refuse_other_quantization(config)
    except UnsupportedModel as error:
        return error.message
    except BrokenModel:
        pass
    return None
