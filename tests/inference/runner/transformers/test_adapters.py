"""Adapters that PEFT wrote change the logits as PEFT does, for each sequence of a batch by itself."""

import warnings
from pathlib import Path

import numpy as np
import peft
import pytest
import torch

from headrace.core.errors import EngineFailed, UnsupportedModel
from headrace.inference.models.peft_adapter import read_peft_modules
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.step import RunnerLimits
from headrace.inference.runner.transformers.loading import load_network, make_runner, read_source
from headrace.inference.runner.transformers.runner import TransformersRunner
from tests.inference.runner.steps import make_step
from tests.inference.runner.transformers.checkpoints import write_network
from tests.parity.networks import VOCAB_SIZE

LIMITS = RunnerLimits(
    num_blocks=1,
    block_tokens=32,
    max_step_tokens=128,
    max_step_sequences=4,
    max_step_rows=128,
    max_context_tokens=64,
    max_adapters=2,
    max_adapter_rank=16,
)
TARGETS = {
    "bloom": ["query_key_value", "dense_4h_to_h"],
    "gpt 2": ["c_attn", "c_fc"],
    "llama": "all-linear",
    "deepseek v2": ["q_a_proj", "o_proj"],
}
TOKENS = np.random.default_rng(5).integers(2, VOCAB_SIZE, 20).tolist()


def save_adapter(name: str, folder: Path, seed: int) -> np.ndarray:
    """Save a random adapter; return PEFT's logits."""
    network = write_network(name, folder / "model")
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=4, lora_alpha=12, task_type="CAUSAL_LM", target_modules=TARGETS[name], fan_in_fan_out=name == "gpt 2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads a property that transformers deprecates
        model = peft.get_peft_model(network, config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(folder / f"adapter-{seed}")
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


def load(folder: Path) -> TransformersRunner:
    budget = MemoryBudget(available_bytes=4 << 30)
    source = read_source(folder / "model", dtype="fp32", device="cpu", trust_remote_code=False)
    return make_runner(load_network(source, budget), source, LIMITS, budget, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("name", TARGETS)
def test_each_sequence_of_a_step_has_its_own_adapter(name: str, tmp_path: Path) -> None:
    expected = [save_adapter(name, tmp_path, seed) for seed in (1, 2)]
    runner = load(tmp_path)
    for slot in (0, 1):
        adapter = read_peft_modules(tmp_path / f"adapter-{slot + 1}", runner.adaptable, max_rank=16)
        runner.load_adapter(slot, adapter)
    chunks = [(TOKENS, 0, [0]), (TOKENS, 0, [1]), (TOKENS, 0, [2])]
    step = make_step(*chunks, all_rows=True, adapters=np.array([0, -1, 1], np.int32))

    assert runner.info.adapter_bytes >= 2 * sum(sum(shape) for shape in runner.adaptable.values()) * 16 * 4

    first, plain, second = runner.logits(step).reshape(3, len(TOKENS), VOCAB_SIZE)

    np.testing.assert_allclose(first, expected[0], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(second, expected[1], rtol=2e-3, atol=2e-3)
    without = runner.logits(make_step(chunks[1], all_rows=True))
    np.testing.assert_allclose(plain, without, rtol=1e-4, atol=1e-4)
    assert np.abs(first - plain).max() > 0.1


def test_an_adapter_of_a_module_that_the_network_lacks_is_refused(tmp_path: Path) -> None:
    save_adapter("bloom", tmp_path, 1)
    shapes = {"transformer.h.0.mlp.dense_4h_to_h": (64, 256)}
    with pytest.raises(UnsupportedModel, match="adapts a module that this network does not have"):
        read_peft_modules(tmp_path / "adapter-1", shapes, max_rank=16)


def test_an_empty_slot_fails_the_step(tmp_path: Path) -> None:
    write_network("bloom", tmp_path / "model")
    step = make_step((TOKENS, 0, [0]), adapters=np.zeros(1, np.int32))
    with pytest.raises(EngineFailed, match="slot 0 has no adapter"):
        load(tmp_path).execute(step)
