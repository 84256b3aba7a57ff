"""Names that LMI gave to its engines over the versions (`option.rolling_batch`), and what each meant."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BACKENDS: Final = ("native", "torch", "transformers", "vllm")
"""Values of the setting `backend` beside auto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that a configuration may ask for."""

    title: str
    backends: tuple[str, ...] = ()
    """Backends that are this engine or took its place, best first; empty: any backend may serve."""
    is_missing: bool = False
    """It needs devices or compiled models that Headrace does not use."""
    remark: str = ""
    """A note on the meaning of its name."""


ENGINES: Final[Mapping[str, Engine]] = {
    "auto": Engine(title="the best engine"),
    "native": Engine(title="the native engine", backends=("native",)),
    "torch": Engine(title="the torch runner", backends=("torch",)),
    "transformers": Engine(title="Transformers", backends=("transformers",)),
    "vllm": Engine(title="vLLM", backends=("vllm",)),
    "lmi-dist": Engine(title="LMI-Dist, which vLLM replaced in LMI 15", backends=("vllm",)),
    "scheduler": Engine(title="LMI's scheduler", remark="every backend batches continuously"),
    "disable": Engine(
        title="no continuous batching",
        remark="requests are still batched continuously, which changes no answer; max_num_seqs=1 runs one at a time",
    ),
    "trtllm": Engine(title="TensorRT-LLM", is_missing=True),
    "deepspeed": Engine(title="DeepSpeed", is_missing=True),
    "tnx": Engine(title="Transformers NeuronX", is_missing=True),
}
"""Values of `rolling_batch`. Source: djl-serving `RollingBatchEnum`, branches 0.25 to 0.36."""

_SPELLINGS: Final = {
    "deepspeed": "deep-speed",
    "disable": "disabled none",
    "transformers": "hf huggingface",
    "lmi-dist": "lmi-dist-v2 lmidist",
    "tnx": "neuron neuronx transformers-neuronx",
    "trtllm": "tensorrt-llm tensorrtllm trt-llm",
}
OTHER_SPELLINGS: Final = {other: name for name, others in _SPELLINGS.items() for other in others.split()}
"""Names in articles and documentation that mean one of `ENGINES`."""


def engine_name(raw: str) -> str:
    """
    Return the name in `ENGINES` that a spelling means; case, `_` and `-` do not matter.

    Raises:
        ValueError: no engine has this name.
    """
    plain = raw.strip().lower().replace("_", "-")
    name = OTHER_SPELLINGS.get(plain, plain)
    if name not in ENGINES:
        raise ValueError(raw)
    return name
