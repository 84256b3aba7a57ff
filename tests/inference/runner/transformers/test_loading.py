"""Loading: what transformers cannot load, what gives other logits, what does not fit, and code of the checkpoint."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headrace.core.errors import BrokenModel, InsufficientMemory, SettingsError, UnsupportedModel
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.step import RunnerLimits
from headrace.inference.runner.transformers.loading import load_network, make_runner, read_source
from headrace.inference.runner.transformers.runner import TransformersRunner
from tests.inference.models.quantized import writers
from tests.inference.models.quantized.test_formats import write_quantized
from tests.inference.runner.transformers.checkpoints import SHARED, write_network
from tests.parity.networks import VOCAB_SIZE

LIMITS = RunnerLimits(
    num_blocks=1,
    block_tokens=32,
    max_step_tokens=64,
    max_step_sequences=4,
    max_step_rows=64,
    max_context_tokens=96,
)
REMOTE = '''
import torch
from transformers import GPT2Config, GPT2LMHeadModel


class TinyConfig(GPT2Config):
    model_type = "tiny_remote"


class TinyForCausalLM(GPT2LMHeadModel):
    """A network that adds the number of tokens in the call to its logits: no other code runs it rightly."""

    config_class = TinyConfig

    def forward(self, input_ids=None, **arguments):
        output = super().forward(input_ids, **arguments)
        output.logits = output.logits * {scale}
        return output
'''


def load(folder: Path, *, dtype: str = "fp32", trust: bool = False, memory_bytes: int = 4 << 30) -> TransformersRunner:
    budget = MemoryBudget(available_bytes=memory_bytes)
    source = read_source(folder, dtype=dtype, device="cpu", trust_remote_code=trust)
    return make_runner(load_network(source, budget), source, LIMITS, budget, vocab_size=VOCAB_SIZE)


def write_remote(folder: Path, scale: str) -> None:
    """Save a checkpoint whose network is Python code in its folder."""
    write_network("gpt 2", folder)
    (folder / "modeling_tiny.py").write_text(REMOTE.replace("{scale}", scale))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "tiny_remote",
        "auto_map": {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))


def test_code_of_a_checkpoint_runs_only_when_that_is_asked_for(tmp_path: Path) -> None:
    write_remote(tmp_path, "2.0")
    with pytest.raises(SettingsError, match=r"a network of its own in Python.* set trust_remote_code"):
        load(tmp_path)
    assert load(tmp_path, trust=True).info.dtype == "fp32"
    assert [*Path(os.environ["HF_MODULES_CACHE"]).rglob("modeling_tiny.py")], "the home would have a copy"


def test_a_network_that_gives_other_logits_in_chunks_is_refused(tmp_path: Path) -> None:
    write_remote(tmp_path, "torch.linspace(-1.0, 1.0, input_ids.shape[1]).unsqueeze(-1)")
    with pytest.raises(UnsupportedModel, match=r"TinyForCausalLM does not run on a paged KV cache: .*differ.*vllm"):
        load(tmp_path, trust=True)


def test_a_network_without_a_kv_cache_is_refused(tmp_path: Path) -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    transformers.OpenAIGPTLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"OpenAIGPTLMHeadModel does not .*--backend vllm"):
        load(tmp_path)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SHARED | {"intermediate_size": 64, "max_position_embeddings": 64})
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="BertLMHeadModel attends in both directions"):
        load(tmp_path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch", "architectures": ["NonesuchForCausalLM"]}')
    with pytest.raises(UnsupportedModel, match="nonesuch"):
        load(tmp_path)


def test_a_model_that_does_not_generate_is_named(tmp_path: Path) -> None:
    config = transformers.CLIPConfig()
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 8)
    with pytest.raises(UnsupportedModel, match="no model of type 'clip' that generates text"):
        load(tmp_path)


def test_a_folder_without_weights_is_broken(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BrokenModel, match="has no weights"):
        load(tmp_path)


def test_weights_that_are_cut_off_are_broken(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(BrokenModel, match=r"cannot be read by transformers: .*not fully covered"):
        load(tmp_path)


def test_what_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    with pytest.raises(InsufficientMemory, match="The weights take"):
        load(tmp_path, memory_bytes=1000)
    with pytest.raises(InsufficientMemory, match=r"KV cache .* do not fit .* a smaller dtype \(bf16\)"):
        load(tmp_path, memory_bytes=1_500_000)


def test_the_dtype_is_that_of_the_checkpoint_or_the_setting(tmp_path: Path) -> None:
    model = write_network("bloom", tmp_path)
    assert load(tmp_path, dtype="auto").info.dtype == "fp32"
    assert load(tmp_path, dtype="bf16").info.kv_dtype == "bf16"
    model.to(torch.float16).save_pretrained(tmp_path)
    assert load(tmp_path, dtype="auto").info.dtype == "bf16"
    with pytest.raises(SettingsError, match="dtype is 'w4a16'; expected one of auto, bf16, fp16, fp32"):
        load(tmp_path, dtype="w4a16")


def compressed_fp8(rng: np.random.Generator, num_rows: int, num_columns: int) -> writers.Written:
    written = writers.fp8("row")(rng, num_rows, num_columns)
    config = writers.compressed_config("float-quantized", num_bits=8, type="float", strategy="channel")
    return writers.Written(written.tensors, written.values, config)


@pytest.mark.parametrize(
    ("writer", "method"),
    [
        (writers.pack_quantized(), "compressed-tensors"),
        (compressed_fp8, "compressed-tensors"),
        (writers.fp8("block", name="weight_scale_inv", block=(16, 16)), "fp8"),
    ],
)
def test_quantized_checkpoints_run_on_a_cpu_with_the_values_of_their_weights(
    writer: writers.Writer, method: str, tmp_path: Path
) -> None:
    values = write_quantized(tmp_path, writer)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= {"ignore": ["lm_head"], "quantization_status": "compressed"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = read_source(tmp_path, dtype="fp32", device="cpu", trust_remote_code=False)
    budget = MemoryBudget(available_bytes=4 << 30)
    network = load_network(source, budget)
    runner = make_runner(network, source, LIMITS, budget, vocab_size=VOCAB_SIZE)

    assert (runner.info.dtype, runner.info.kv_dtype) == (method, "fp32")
    stored = network.model.layers[0].mlp.down_proj.weight.detach().float().numpy()
    np.testing.assert_allclose(stored, values["layers.0.down"], rtol=2**-7, atol=1e-6)


def test_quantized_weights_of_which_transformers_leaves_parts_are_refused(tmp_path: Path) -> None:
    write_quantized(tmp_path, writers.fp8("row", method="compressed-tensors"))  # its config describes no format
    with pytest.raises(UnsupportedModel, match=r"did not use 14 tensors .*down_proj\.weight_scale.*--backend native"):
        load(tmp_path)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["transformer.h.0.mlp.dense_h_to_4h.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(BrokenModel, match=r"lacks weights of its network \(1\): transformer\.h\.0\.mlp\.dense_h_to_4h"):
        load(tmp_path)


def test_weights_that_are_not_numbers_are_broken(tmp_path: Path) -> None:
    model = write_network("bloom", tmp_path)
    with torch.no_grad():
        model.transformer.h[0].mlp.dense_h_to_4h.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(BrokenModel, match="logits that are not finite"):
        load(tmp_path)


def test_a_missing_package_of_a_quantization_is_named(tmp_path: Path) -> None:
    write_network("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "aqlm", "in_group_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=r"needs a package that is not installed.*aqlm"):
        load(tmp_path)
