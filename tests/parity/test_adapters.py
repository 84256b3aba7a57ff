"""Adapters that PEFT itself writes change the logits as PEFT does: fused and permuted matrices, ranks, scales."""

import warnings
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from safetensors.numpy import load_file

from headrace.inference.models.loading import load_model
from headrace.inference.models.peft_adapter import read_peft_adapter
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.runner.native_models import LIMITS, load, relative_error
from tests.inference.runner.steps import make_step
from tests.parity.networks import VOCAB_SIZE
from tests.parity.references import torch_network

TOKENS = np.random.default_rng(6).integers(0, VOCAB_SIZE, 50).tolist()
SLOTS = replace(LIMITS, max_adapters=1, max_adapter_rank=16, max_context_tokens=len(TOKENS))
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"target_modules": "all-linear", "r": 5},
    "llama, biases": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "phi 3, sliding window": {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    "qwen 3": {
        "target_modules": r".*layers\.[02]\..*_proj",
        "rank_pattern": {"q_proj": 16, r"layers\.2\.mlp\.\w+": 3},
        "alpha_pattern": {"down_proj": 1},
    },
    "gemma 3, with images": {"target_modules": r".*language_model.*\.(q_proj|k_proj|o_proj|up_proj)"},
    "glm 4, 0414": {"target_modules": ["q_proj", "k_proj", "gate_up_proj"]},
    "granite": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1], "r": 16},
    "mixtral": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}


@pytest.fixture(scope="module", params=CONFIGS)
def adapted(request, tmp_path_factory):
    """Return the folders of a checkpoint and of an adapter, and PEFT's logits."""
    folder = tmp_path_factory.mktemp("adapted")
    network = torch_network(request.param, folder / "model")
    config = peft.LoraConfig(**{"r": 8, "lora_alpha": 12, "task_type": "CAUSAL_LM"} | CONFIGS[request.param])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads a property that transformers deprecates
        model = peft.get_peft_model(network, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(folder / "adapter")
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    return folder, expected


def test_the_logits_are_those_of_peft(adapted, tmp_path):
    folder, expected = adapted
    model = load_model(str(folder / "model"))
    adapter = read_peft_adapter(folder / "adapter", model.spec, max_rank=16)
    step = make_step((TOKENS, 0, [4, 1]), all_rows=True, adapters=np.zeros(1, np.int32))
    reference = ReferenceRunner(model.spec, model.weights, SLOTS)
    reference.load_adapter(0, adapter)
    np.testing.assert_allclose(reference.logits(step), expected, rtol=5e-4, atol=5e-4)
    plain = reference.logits(replace(step, adapters=None))
    assert relative_error(plain, expected) > 0.03
    if model.spec.moe is None:  # rounding changes the choice of experts
        native = load(model.spec, model.weights, tmp_path, limits=SLOTS)
        native.load_adapter(0, adapter)
        assert relative_error(native.logits(step), expected) < 0.02


def test_a_pickled_adapter_is_the_same_adapter(adapted, tmp_path):
    folder, _ = adapted
    spec = load_model(str(folder / "model")).spec
    expected = read_peft_adapter(folder / "adapter", spec, max_rank=16)
    tensors = {
        name: torch.from_numpy(np.array(values))
        for name, values in load_file(folder / "adapter" / "adapter_model.safetensors").items()
    }
    torch.save(tensors, tmp_path / "adapter_model.bin")
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter" / "adapter_config.json").read_bytes())
    assert read_peft_adapter(tmp_path, spec, max_rank=16).identity == expected.identity
