"""The GGUF file of a checkpoint, with the names and permutations of llama.cpp's converter, gives the same network."""

import re
from dataclasses import replace

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.inference.models.decoding import decode
from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.inference.models.hf_checkpoint import read_hf_checkpoint
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.models.model_files import gguf_metadata, write_gguf
from tests.inference.runner.states import new_sequences
from tests.inference.runner.steps import make_step
from tests.parity import delta_twins, gemma4_twins
from tests.parity.checkpoints import CONTEXT, TOKENS, write_checkpoint
from tests.parity.ssd_twins import SSD_TWINS, converted_ssd
from tests.parity.test_layouts import write_layout

PERMUTED = (
    "arcee",
    "granite",
    "olmo",
    "granitemoe",
    "smollm3",
    "minicpm",
    "llama",
    "internlm2",
    "baichuan",
    "muse-glimmer",
    "deci",
)
"""Architectures whose converter interleaves the rows of q and k, which the checkpoint holds as halves."""
LATENT = ("deepseek2", "deepseek32", "glm-dsa", "mistral4")
"""Architectures whose converter stores the matrices of keys and values of latent attention apart."""
OFFSET_NORMS = {**dict.fromkeys(("gemma", "gemma2", "nemotron"), "norm"), "muse-glimmer": "layernorm"}
"""Architectures whose converter adds 1 to the weights of norms, and a part of the names of these."""
SCALES_IN_NORMS = ("muse-glimmer",)
"""Architectures whose converter puts the factor of the scores into the weights of the norms of q."""
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
ROUTED = {
    "expert_count": 12,
    "expert_used_count": 3,
    "expert_feed_forward_length": 32,
    "expert_weights_scale": 1.8,
    "expert_weights_norm": True,
}
SHARED = {"expert_shared_count": 2, "leading_dense_block_count": 1}
"""Keys of experts that Headrace finds in the tensors, and llama.cpp does not."""
CONVOLUTIONS = {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 192,
    "attention.recurrent_layers": [True, True, False, True],
    "full_attention_interval": 4,
    "rope.dimension_count": 8,
}
DELTA_EXPERTS = {
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
}
NAMED_AS = {"hy_v3": "dots1", "deepseek32": "glm-dsa", "laguna": "step35", "muse-glimmer": "afmoe"}
"""Architectures that the installed `gguf` does not know, and one that names the same tensors alike."""
GEMMA4 = {
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "attention.sliding_window": 17,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32,
    "rope.freq_base_swa": 10000.0,
    "final_logit_softcapping": 20.0,
}
TWINS = {
    "phi 3, sliding window": ("phi3", {"attention.sliding_window": 17}),
    "phi 4 mini": (
        "phi3",
        {
            "rope.dimension_count": 24,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": (1 + np.log(2) / np.log(64)) ** 0.5,
        },
    ),
    "granite": (
        "granite",
        {"attention.scale": 0.1, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0},
    ),
    "olmoe": ("olmoe", {"expert_count": 10, "expert_used_count": 3}),
    "granite moe, shared": (
        "granitemoe",
        {"attention.scale": 0.1, "logit_scale": 8.0, "expert_count": 6, "expert_used_count": 2}
        | {"expert_shared_feed_forward_length": 64},
    ),
    "gpt oss": (
        "gpt-oss",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 96,
            "attention.sliding_window": 17,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "glm 4.5": (
        "glm4moe",
        ROUTED | SHARED | {"rope.dimension_count": 16, "expert_group_count": 3, "expert_group_used_count": 2},
    ),
    "ernie 4.5 moe": (
        "ernie4_5-moe",
        ROUTED
        | SHARED
        | {"expert_count": 10, "expert_weights_scale": 1.0, "interleave_moe_layer_step": 1}
        | {"expert_shared_feed_forward_length": 64},
    ),
    "minimax m2": (
        "minimax-m2",
        ROUTED | {"rope.dimension_count": 16, "expert_count": 10, "expert_weights_scale": 1.0, "expert_gating_func": 2},
    ),
    "dots 1": ("dots1", ROUTED | SHARED | {"expert_gating_func": 2}),
    "exaone moe": (
        "exaone-moe",
        ROUTED
        | SHARED
        | {"expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_gating_func": 2}
        | {"attention.sliding_window": 17},
    ),
    "hunyuan": ("hunyuan-dense", {}),
    "hunyuan moe": (
        "hunyuan-moe",
        {"expert_count": 6, "expert_used_count": 2}
        | {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96},
    ),
    "hy 3": (
        "hy_v3",
        ROUTED | {"expert_weights_scale": 2.826, "expert_gating_func": 2, "expert_shared_feed_forward_length": 32},
    ),
    "laguna": (
        "laguna",
        ROUTED
        | {
            "attention.head_count": [4, 6, 6, 2],
            "attention.sliding_window": 17,
            "expert_shared_feed_forward_length": 64,
            "expert_weights_scale": 2.5,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 16,
            "rope.dimension_count_swa": 32,
            "rope.freq_base_swa": 100.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "trinity": ("afmoe", ROUTED | SHARED | {"attention.sliding_window": 17}),
    "lfm 2": ("lfm2", CONVOLUTIONS),
    "lfm 2 moe": (
        "lfm2moe",
        CONVOLUTIONS
        | ROUTED
        | {"expert_count": 10, "expert_weights_scale": 1.3, "leading_dense_block_count": 1, "expert_gating_func": 2},
    ),
    "qwen 3 next": ("qwen3next", DELTA | DELTA_EXPERTS),
    "qwen 3.5": (
        "qwen35",
        DELTA
        | {
            "rope.dimension_sections": [2, 1, 1, 0],
            "block_count": 5,
            "nextn_predict_layers": 1,
            "attention.recurrent_layers": [True, True, False, True, False],
        },
    ),
    "qwen 3.5 moe": ("qwen35moe", DELTA | DELTA_EXPERTS | {"rope.dimension_sections": [2, 1, 1, 0]}),
    "kimi linear": (
        "kimi-linear",
        ROUTED
        | {
            "attention.head_count_kv": [0, 0, 1, 0],
            "attention.kv_lora_rank": 64,
            "attention.key_length": 80,
            "attention.key_length_mla": 48,
            "attention.value_length_mla": 48,
            "rope.dimension_count": 16,
            "ssm.conv_kernel": 4,
            "kda.head_dim": 32,
            "expert_gating_func": 2,
            "expert_group_count": 3,
            "expert_group_used_count": 2,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
        },
    ),
    "phi 3.5 moe": (
        "phimoe",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "rope.scaling.original_context_length": 112,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
    "smollm 3": ("smollm3", {}),
    "gemma": ("gemma", {}),
    "glm 4, 0414": ("glm4", {"rope.dimension_count": 16}),
    "ernie 4.5": ("ernie4_5", {}),
    "seed oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {}),
    "gemma 2": (
        "gemma2",
        {
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 20.0,
            "attention.sliding_window": 17,
        },
    ),
    "muse glimmer": (
        "muse-glimmer",
        {
            "attention.sliding_window": 17,
            "attention.sliding_window_pattern": [True, True, True, False],
            "logit_scale": 0.5,
            "final_logit_softcapping": 20.0,
        },
    ),
    "gemma 4": (
        "gemma4",
        GEMMA4
        | {
            "attention.head_count_kv": [2, 2, 1] * 2,
            "attention.sliding_window_pattern": [True, True, False] * 2,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 32,
            "feed_forward_length": [96] * 4 + [192] * 2,
        },
    ),
    "gemma 4, experts": (
        "gemma4",
        GEMMA4
        | {
            "attention.head_count_kv": [2, 2, 1],
            "attention.sliding_window_pattern": [True, True, False],
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "expert_count": 10,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
        },
    ),
    "olmo": ("olmo", {"attention.clamp_kqv": 1.5}),
    "olmo 2": ("olmo2", {}),
    "exaone 4, windows": ("exaone4", {"attention.sliding_window": 17}),
    "command r": ("command-r", {"logit_scale": 0.25}),
    "command r+": ("command-r", {"logit_scale": 0.0625}),
    "command r7b": ("cohere2", {"logit_scale": 0.0625, "attention.sliding_window": 17}),
    "stablelm": ("stablelm", {"rope.dimension_count": 8}),
    "stablelm, parallel": ("stablelm", {}),
    "starcoder 2": ("starcoder2", {}),
    "phi 2": ("phi2", {"rope.dimension_count": 40}),
    "nemotron": ("nemotron", {"rope.dimension_count": 16}),
    "falcon 7b": ("falcon", {}),
    "falcon 40b": ("falcon", {}),
    "gpt neox": ("gptneox", {"rope.dimension_count": 8, "use_parallel_residual": True}),
    "gpt neox, sequential": ("gptneox", {"rope.dimension_count": 20, "use_parallel_residual": False}),
    "gpt 2": ("gpt2", {}),
    "bloom": ("bloom", {"attention.max_alibi_bias": 8.0}),
    "mpt": ("mpt", {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.5}),
    "qwen 2, yarn with an exact ramp": (
        "qwen2",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    ),
    **SSD_TWINS,
}


def stack_experts(tensors):
    """Return the tensors with all experts of a layer in one."""
    stacks = {}
    for name, values in tensors.items():
        stacks.setdefault(re.sub(r"experts\.\d+\.", "experts.", name), {})[name] = values
    by_number = {
        name: sorted(parts, key=lambda part: [*map(int, re.findall(r"\d+", part))]) for name, parts in stacks.items()
    }
    return {
        name: np.stack([parts[part] for part in by_number[name]]) if len(parts) > 1 else parts.popitem()[1]
        for name, parts in stacks.items()
    }


def split(name, values):
    """Yield a tensor, or gate and up of one that holds both, which some converters store apart."""
    if re.search(r"mlp\.experts\.(gate_up|down)_proj(_bias)?$", name):  # gpt-oss
        turned = values if name.endswith("bias") else values.swapaxes(1, 2)
        suffix = ".bias" if name.endswith("bias") else ".weight"
        prefix = name.removesuffix("_bias").removesuffix("gate_up_proj")
        parts = {prefix + suffix: turned}
        if "gate_up" in name:
            parts = {f"{prefix}gate_proj{suffix}": turned[:, 0::2], f"{prefix}up_proj{suffix}": turned[:, 1::2]}
        yield from ((part, np.ascontiguousarray(rows)) for part, rows in parts.items())
        return
    if "input_linear" not in name and "ffn.proj_1" not in name:
        yield name, values
        return
    prefix = name.replace("block_sparse_moe", "mlp.experts").replace("shared_mlp", "mlp.shared_experts")
    prefix = prefix.replace("transformer.layers", "model.layers").replace("ffn.proj_1", "mlp.input_linear")
    for part, rows in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=-2), strict=True):
        yield prefix.replace("input_linear", part), np.ascontiguousarray(rows)


def text_tensors(folder):
    """Return the tensors of the part that reads text, without those whose numbers are in the metadata."""
    others = ("vision_tower.", "multi_modal_projector.", "model.vision_")
    tensors = load_file(folder / "model.safetensors").items()
    own = {name: values for name, values in tensors if not name.startswith(others) and ".act_fn." not in name}
    return {name.replace("language_model.", ""): values for name, values in own.items()}


def split_latents(name, values, spec):
    """Yield a tensor, or the transposed matrices of keys and the matrices of values that it holds head by head."""
    if not name.endswith("kv_b_proj.weight"):
        yield f"{name}.weight" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else name, values
        return
    heads = values.reshape(spec.num_heads, -1, values.shape[-1])
    keys, values = np.split(heads, [spec.mla.key_dim], axis=1)
    yield name.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(keys.swapaxes(1, 2))
    yield name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(values)


def converted(folder, architecture, spec, *, splits_latents=True):
    """Return the tensors of a folder as llama.cpp's converter writes them."""
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known[NAMED_AS.get(architecture, architecture)], spec.num_layers)
    tensors = {}
    for stored_name, stored in stack_experts(text_tensors(folder)).items():
        name = stored_name.removeprefix("transformer.") if architecture in {"bloom", "chatglm"} else stored_name
        values, name = converted_values(name, stored, architecture, spec), name_to_look_up(name)
        if architecture == "afmoe":
            name = name.replace("mlp.expert_bias", "mlp.expert_bias.bias")
        for part, rows in pieces_of(name, values, spec, architecture, splits_latents=splits_latents):
            name = names.get_name(part, try_suffixes=(".weight", ".bias"))
            tensors[f"{name}.weight" if part.endswith("sinks") else name] = rows
    for kind in ("short", "long"):
        factors = getattr(spec.ropes[0], f"{kind}_factors")
        tensors |= {f"rope_factors_{kind}.weight": np.array(factors, np.float32)} if factors else {}
    return tensors | (norms_with_the_scale(spec) if architecture in SCALES_IN_NORMS else {})


def converted_values(name, values, architecture, spec):
    """Return a tensor in the order and with the offset that the converter gives it."""
    layer = re.search(r"layers\.(\d+)\.", name)
    shape = spec.attention(int(layer[1]) if layer else 0)
    heads = shape.num_heads if "q_proj" in name else shape.num_kv_heads if "k_proj" in name else 0
    if heads and architecture in PERMUTED:
        rows = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        values = rows.swapaxes(1, 2).reshape(values.shape)
    if architecture in {"falcon", "gptneox", "bloom"} and "query_key_value" in name:
        values = by_part(values, spec)
    if "conv.conv" in name:
        values = values.squeeze(1)
    if architecture == "gpt2" and name.endswith(TRANSPOSED):
        values = np.ascontiguousarray(values.T)
    if name.endswith("weight") and OFFSET_NORMS.get(architecture, "without") in name:
        values = values + 1
    return values


def name_to_look_up(name):
    """Return the name of a tensor as the table of names in `gguf` spells it."""
    name = name.replace("mlp.router.gate.", "mlp.gate.").replace("mlp.gate.wg.", "mlp.gate.")
    name = re.sub(r"(e_score_correction|expert)_bias$", r"\1.bias", name)
    name = name.replace("feed_forward.expert.bias", "feed_forward.expert_bias.bias")
    name = re.sub(r"^model\.(.+feed_forward\.experts)", r"\1", name)
    name = name.replace("mlp.experts.e_score_correction.bias", "mlp.gate.e_score_correction.bias")
    return name.replace("mlp.expert.bias", "mlp.expert_bias")  # HY3: the converter gives it no suffix


def norms_with_the_scale(spec):
    """Return the norms of q and k that a converter writes for a network that has them without weights."""
    scale = np.full(spec.head_dim, spec.attention_scale * spec.head_dim**0.5, np.float32)
    norms = {"attn_q_norm.weight": scale, "attn_k_norm.weight": np.ones(spec.head_dim, np.float32)}
    return {f"blk.{layer}.{name}": norm for layer in range(spec.num_layers) for name, norm in norms.items()}


def pieces_of(name, values, spec, architecture, *, splits_latents):
    """Return the tensors that a converter makes of one, by the names from which `gguf` derives those in the file."""
    if architecture == "kimi-linear":
        return [delta_twins.by_channel(*piece) for piece in split_latents(name, values, spec)]
    if spec.delta is not None:
        return list(delta_twins.convert(name, values, spec, architecture))
    if spec.ssd is not None:
        return [converted_ssd(*piece, spec) for piece in split(name, values)]
    if architecture in LATENT and splits_latents:
        return list(split_latents(name, values, spec))
    return list(split(name, values))


def numbers_of_layers(folder):
    """Return the numbers of activations, which a converter writes as lists with one of each layer."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted((name for name in tensors if ".act_fn." in name), key=lambda name: int(name.split(".")[2]))
    listed = {}
    for name in names:
        listed.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(float(tensors[name].item()))
    return listed


def metadata_of(spec, architecture):
    """Return what a converter writes; the key of the epsilon depends on the norms."""
    metadata = gguf_metadata(spec, architecture)
    if spec.norm == "layer":
        epsilon = metadata.pop(f"{architecture}.attention.layer_norm_rms_epsilon")
        metadata[f"{architecture}.attention.layer_norm_epsilon"] = epsilon
    return metadata


def by_part(values, spec):
    """Return q, k and v of all heads after each other, which the checkpoint holds by KV head."""
    heads = values.reshape(spec.num_kv_heads, spec.group_size + 2, spec.head_dim, *values.shape[1:])
    parts = [heads[:, : spec.group_size], heads[:, spec.group_size], heads[:, spec.group_size + 1]]
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


LAYOUT_TWINS = {
    "chatglm": ("chatglm", {"rope.dimension_count": 32}),
    "deci": (
        "deci",
        {
            "attention.head_count": [4, 4, 4, 0],
            "attention.head_count_kv": [4, 2, 2, 0],
            "feed_forward_length": [256, 512, 0, 256],
            "rope.dimension_count": 32,
        },
    ),
    "openelm": (
        "openelm",
        {
            "attention.head_count": [4, 6, 4],
            "attention.head_count_kv": [4, 2, 2],
            "feed_forward_length": [96, 128, 96],
            "rope.dimension_count": 32,
        },
    ),
    "qwen 1": ("qwen", {"feed_forward_length": 192}),
    "minicpm": (
        "minicpm",
        {"embedding_scale": 12.0, "residual_scale": 1.4 / 3**0.5, "logit_scale": 8.0},
    ),
}
"""Of families that `transformers` reads only with code from the checkpoint."""
RENAMED = {
    "llama": "llama",
    "qwen3": "qwen 3",
    "internlm2": "llama",
    "baichuan": "llama, as many kv heads",
    "qwen2vl": "qwen 2",
    "qwen3vl": "qwen 3",
}
"""Architectures whose files are those of a known network; converters split the fused matrices of the first two."""


@pytest.mark.parametrize("name", [*TWINS, *LAYOUT_TWINS])
def test_a_gguf_file_has_the_network_and_the_weights_of_its_folder(name, tmp_path):
    write = write_checkpoint if name in TWINS else write_layout
    write(name, tmp_path / "model")
    architecture, metadata = (TWINS | LAYOUT_TWINS)[name]
    check_twin(tmp_path, architecture, metadata)


@pytest.mark.parametrize("architecture", RENAMED)
def test_a_file_of_another_architecture_has_a_known_network(architecture, tmp_path):
    write_checkpoint(RENAMED[architecture], tmp_path / "model")
    check_twin(tmp_path, architecture, {}, is_renamed=True)


def write_twin(folder, architecture, metadata, *, splits_latents=True, more=None):
    """Write the GGUF file of the folder `model` beside it; return it and the checkpoint of the folder."""
    checkpoint = read_hf_checkpoint(folder / "model")
    common = {"attention.key_length": checkpoint.spec.head_dim, "attention.value_length": checkpoint.spec.head_dim}
    values = {f"{architecture}.{key}": value for key, value in (common | metadata).items()}
    if architecture in {"granite", "minicpm"}:
        values[f"{architecture}.attention.layer_norm_rms_epsilon"] = 1e-6
    if architecture == "gemma4":
        tensors = gemma4_twins.converted(folder / "model", checkpoint.spec)
    else:
        tensors = converted(folder / "model", architecture, checkpoint.spec, splits_latents=splits_latents)
    values = metadata_of(checkpoint.spec, architecture) | values | numbers_of_layers(folder / "model") | (more or {})
    return write_gguf(folder / "model.gguf", values, tensors, architecture=architecture), checkpoint


def check_twin(folder, architecture, metadata, *, is_renamed=False, splits_latents=True):
    file, checkpoint = write_twin(folder, architecture, metadata, splits_latents=splits_latents)
    opened = open_gguf(file)
    family, spec = read_gguf_spec(opened)
    expected_spec = comparable(checkpoint.spec)
    scales_norms = architecture in SCALES_IN_NORMS
    expected_spec = replace(expected_spec, attention_scale=0.0) if scales_norms else expected_spec
    assert comparable(spec) == (replace(expected_spec, family=spec.family) if is_renamed else expected_spec)
    weights = GgufWeights(opened, family, spec)
    assert set(weights.names()) == set(checkpoint.weights.names())
    networks = ((checkpoint.spec, checkpoint.weights), (spec, weights))
    is_tiled = spec.delta is not None and spec.delta.is_tiled
    has_factors = bool(checkpoint.spec.weight_factors)
    for weight in weights.names():
        if has_factors and not weight.startswith("layers."):
            continue  # converters multiply the embeddings and the LM head, readers of folders the hidden states
        if spec.rope_of_layer and weight.endswith((".q", ".k")) and spec.rope(int(weight.split(".")[1])) is None:
            continue  # without positions the order of the rows of a head does not matter
        if scales_norms and weight.endswith(".q_norm"):
            continue
        expected = decode(checkpoint.weights.load(weight))
        if is_tiled and spec.mixer(layer_of(weight)) == "delta":
            expected = delta_twins.tiled(weight, expected, spec.delta)
        np.testing.assert_allclose(decode(weights.load(weight)), expected, rtol=1e-6, err_msg=weight)
    if (
        is_tiled or has_factors or scales_norms
    ):  # of tiled heads the order differs, and with it that of the columns of `o`
        has_state = checkpoint.spec.has_state
        limits = replace(CONTEXT, num_state_slots=int(has_state))
        step = make_step((TOKENS, 0, [7, 3, 11, 2]), states=new_sequences(len(TOKENS)) if has_state else None)
        logits = [ReferenceRunner(*network, limits).logits(step) for network in networks]
        np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)


def layer_of(weight):
    layer = weight.split(".")[1] if weight.startswith("layers.") else "-1"
    return int(layer)


def comparable(spec):
    """Return the spec without numbers beyond the precision of float32, and without what GGUF files do not hold."""
    if spec.attention_beside:
        spec = replace(spec, weight_factors=(), embedding_scale=1.0, logit_scale=1.0)
    exact = ("attention_scale", "embedding_scale", "logit_scale", "norm_eps")
    ropes = [replace(rope, attention_factor=round(rope.attention_factor, 5), truncate=True) for rope in spec.ropes]
    moe = spec.moe and replace(
        spec.moe, tolerance=float(spec.moe.tolerance > 0), factor_scale=round(spec.moe.factor_scale, 5)
    )
    delta = spec.delta and replace(spec.delta, is_tiled=False, norm_eps=float(f"{spec.delta.norm_eps:.5g}"))
    ssd = spec.ssd and replace(spec.ssd, norm_eps=float(f"{spec.ssd.norm_eps:.5g}"))
    spec = replace(spec, swiglu_limit=0.0, moe=moe, delta=delta, ssd=ssd)
    return replace(spec, **{key: float(f"{getattr(spec, key):.5g}") for key in exact}, ropes=tuple(ropes))
