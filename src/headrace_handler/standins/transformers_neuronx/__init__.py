"""
Stand-in for AWS's `transformers_neuronx` without Neuron devices: the same folders, by transformers on the CPU.

It needs torch and transformers. Source of names and of the format of split folders: aws-neuron/transformers-neuronx.
"""

import json
import logging
import os
import re
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace_handler.submodules import add_submodules

_logger = logging.getLogger(__name__)
SPLIT = "pytorch_model.bin"
LISTING = "key_to_filename.json"
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_DEFAULT_POSITIONS = 2048
_FIRST_WITH_DTYPE = (4, 56)
"""Version of transformers that named the argument `torch_dtype` `dtype`; models' requirements ask for old ones too."""
LAYOUT_BSH = "BSH"
LAYOUT_HSB = "HSB"
LAYOUT_SBH = "SBH"


class GQA(Enum):
    """Way in which cores share the heads of keys and values."""

    SHARD_OVER_HEADS = "shard-over-heads"
    SHARD_OVER_BATCH = "shard-over-batch"
    REPLICATED_HEADS = "replicated-heads"
    ALL_GATHER_HEADS = "all-gather-heads"


# config: settings of the compiler, which are kept and have no effect on a CPU


_CONFIGS = "GenerationConfig QuantizationConfig ContinuousBatchingConfig NeuronConfig"
for _name in _CONFIGS.split():
    globals()[_name] = type(_name, (SimpleNamespace,), {"__module__": __name__})

# module


def save_pretrained_split(model: Any, save_directory: Any) -> None:
    """Write a model of transformers as a folder with a file for each tensor, which `from_pretrained` reads."""
    import torch

    folder = Path(save_directory)
    (folder / SPLIT).mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tensors = model.state_dict()
    names = {name: f"p{index}.{re.sub(r'[^-.A-Za-z0-9_]', '', name)}" for index, name in enumerate(tensors)}
    (folder / SPLIT / LISTING).write_text(json.dumps(names, indent=2))
    for name, tensor in tensors.items():
        torch.save(tensor.detach().clone(), folder / SPLIT / names[name])


def load_split(folder: Path) -> dict[str, Any]:
    """
    Read the tensors of a split folder; a file is read as a tensor and runs no code.

    Raises `ValueError`: the listing names a file elsewhere, or a file without weights.
    """
    import torch

    tensors = {}
    for name, file in json.loads((folder / LISTING).read_text()).items():
        if Path(file).name != file or file in {"", "..", "."}:
            raise ValueError(f"{folder / LISTING} names {file!r} for {name}, which is not a file of its folder.")
        if file.endswith(".empty_json"):
            raise ValueError(f"{folder / file} describes random weights for {name}; expected a tensor.")
        tensors[name] = torch.load(folder / file, map_location="cpu", weights_only=True, mmap=True)
    return tensors


class CpuModelForSampling:
    """A decoder of transformers with the methods of the models of `transformers_neuronx`."""

    def __init__(self, network: Any, *, batch_size: int, n_positions: int) -> None:
        self.network = network
        self.config = network.config
        self.batch_size = batch_size
        self.n_positions = n_positions

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_path: Any,
        *,
        batch_size: int = 1,
        amp: str = "f32",
        n_positions: int | list[int] = _DEFAULT_POSITIONS,
        **_neuron: Any,
    ) -> "CpuModelForSampling":
        """
        Load a folder, split or as transformers writes it.

        Every call has `batch_size` rows, as compiled for on Neuron. `n_positions` is the longest sequence, prompt
        included; of several compiled lengths the largest counts. `_neuron` is what only a device and its compiler use.

        Raises `ValueError`: `amp` is unknown, or the folder is malformed.
        """
        import torch

        if amp not in _DTYPES:
            raise ValueError(f"amp is {amp!r}; expected one of {', '.join(_DTYPES)}.")
        network = _load(Path(pretrained_model_path), getattr(torch, _DTYPES[amp]))
        longest = max(n_positions) if isinstance(n_positions, list) else n_positions
        return cls(network.eval(), batch_size=batch_size, n_positions=longest)

    def to_neuron(self) -> None:
        """Compile for Neuron; there is nothing to compile on a CPU, and the log says so."""
        unused = ", ".join(name for name in os.environ if name.startswith("NEURON"))
        _logger.warning(
            "There is no Neuron device: the model runs on the CPU, by transformers. Nothing is compiled or cached%s.",
            f"; {unused} have no effect" if unused else "",
        )

    def reset(self) -> None:
        """Forget the last request; nothing is kept between calls here."""

    def sample(
        self, input_ids: Any, sequence_length: int, start_ids: Any = None, top_k: int = 50, **options: Any
    ) -> Any:
        """
        Continue token sequences.

        Args:
            input_ids: int [batch_size, prompt length].
            sequence_length: length of the result, prompt included; at most `n_positions`.
            start_ids: int [batch_size], the first position of each row that is not padding.
            top_k: tokens to choose among; 1 is greedy.
            options: `top_p`, `temperature`, `streamer` and others of `generate`.

        Returns:
            int [batch_size, at most sequence_length], shorter if all rows ended.
        """
        import torch

        self.check_batch(input_ids)
        mask = torch.ones_like(input_ids)
        if start_ids is not None:
            mask = (torch.arange(input_ids.shape[1])[None] >= torch.as_tensor(start_ids)[:, None]).long()
        ends = self.config.eos_token_id
        chosen = {"do_sample": True, "top_k": top_k} if top_k > 1 else {"do_sample": False}
        return self.network.generate(
            input_ids,
            attention_mask=mask,
            max_length=min(sequence_length, self.n_positions),
            pad_token_id=ends[0] if isinstance(ends, list) else ends,
            **chosen,
            **options,
        )

    def check_batch(self, input_ids: Any) -> None:
        """Refuse a batch of another size than the model was loaded for, as the compiled one does."""
        if input_ids is not None and len(input_ids) != self.batch_size:
            raise ValueError(f"The batch has {len(input_ids)} rows; expected {self.batch_size}, its batch_size.")


def _load(folder: Path, dtype: Any) -> Any:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    options = {"dtype" if version >= _FIRST_WITH_DTYPE else "torch_dtype": dtype}
    split = folder / SPLIT
    if not split.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    config = transformers.AutoConfig.from_pretrained(folder)
    network_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return network_class.from_pretrained(None, config=config, state_dict=load_split(split), **options)


class LlamaForSampling(CpuModelForSampling):
    """A Llama, or another decoder that transformers can load."""


class OPTForSampling(CpuModelForSampling):
    """An OPT, or another decoder that transformers can load."""


class HuggingFaceGenerationModelAdapter:
    """Offers `generate` of transformers over a model for sampling."""

    def __init__(self, config: Any, model: CpuModelForSampling) -> None:
        self.config = config
        self.model = model

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model of transformers, such as `device` or `generation_config`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model.network, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate; takes the arguments of `transformers.GenerationMixin.generate`."""
        self.model.check_batch(args[0] if args else kwargs.get("input_ids", kwargs.get("inputs")))
        return self.model.network.generate(*args, **kwargs)

    def reset_generation(self) -> None:
        """Forget the last request. Nothing is kept between calls of `generate` here."""


add_submodules(
    __name__,
    {
        "config": _CONFIGS,
        "constants": "LAYOUT_BSH LAYOUT_HSB LAYOUT_SBH GQA",
        "generation_utils": "HuggingFaceGenerationModelAdapter",
        "module": "SPLIT LISTING save_pretrained_split load_split CpuModelForSampling",
        "llama": "",
        "llama.model": "LlamaForSampling",
        "opt": "",
        "opt.model": "OPTForSampling",
    },
)
