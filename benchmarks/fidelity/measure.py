"""The quality of a weight format: perplexity and agreement with the same weights in `transformers`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.harness.steps import BLOCK, prompt_step

from headrace.inference.models.decoding import decode
from headrace.inference.models.model import Model
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.native import NativeRunner, load_native_runner
from headrace.inference.runner.packing import layer_formats_of
from headrace.inference.runner.plan import plan_runner
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import Float32, RunnerLimits, StepInput

if TYPE_CHECKING:  # imported where it is used: the native kernels need no torch
    import torch
    from transformers import LlamaForCausalLM

CONTEXT_TOKENS = 2048
CHUNK_TOKENS = 256
LIMITS = RunnerLimits(
    num_blocks=CONTEXT_TOKENS // BLOCK,
    block_tokens=BLOCK,
    max_step_tokens=CHUNK_TOKENS,
    max_step_sequences=1,
    max_step_rows=CHUNK_TOKENS,
    max_context_tokens=CONTEXT_TOKENS,
)
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Predictions:
    """The predictions of one model along one text, teacher-forced."""

    best: np.ndarray
    """(T,) the most likely next token at each position."""
    losses: Float32
    """(T - 1,) negative log-likelihood in nats of each token after the first."""

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.losses.mean(dtype=np.float64)))

    def agreement(self, other: "Predictions") -> float:
        """Return the share of positions where both choose the same token."""
        return float((self.best == other.best).mean())


def torch_model(spec: ModelSpec, weights: WeightSource, dtype: "torch.dtype") -> "LlamaForCausalLM":
    """Return a Llama of `transformers` with the dequantized weights, in memory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.ropes[0].theta},
        tie_word_embeddings=spec.tie_embeddings,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {_torch_name(name): _tensor(weights, name, dtype) for name in weights.names()}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are not weights of the checkpoint
    return model.eval()


def native_runner(model: Model, dtype: str, kv_dtype: str, *, isa: str | None, cache_dir: Path) -> NativeRunner:
    plan = plan_runner(
        model.spec,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_tokens=BLOCK,
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK_TOKENS,
        budget=MemoryBudget(available_bytes=1 << 34),
        layer_formats=layer_formats_of(model.spec, model.weights),
    )
    return load_native_runner(model.spec, model.weights, replace(plan, limits=LIMITS), isa=isa, cache_dir=cache_dir)


def predict_torch(model: "LlamaForCausalLM", tokens: Sequence[int]) -> Predictions:
    """Return the teacher-forced predictions of `transformers`."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0].float()
        losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]), reduction="none")
    return Predictions(logits.argmax(dim=1).numpy(), losses.numpy())


def predict_native(runner: NativeRunner, tokens: Sequence[int]) -> Predictions:
    """Return the teacher-forced predictions of the native kernels, in chunks through the paged KV cache."""
    outputs = [runner.execute(chunk_step(tokens, start)) for start in range(0, len(tokens), CHUNK_TOKENS)]
    best = np.concatenate([output.top_ids[:, 0] for output in outputs])
    return Predictions(best, -np.concatenate([output.logprobs for output in outputs])[:-1])


def greedy_answer(model: "LlamaForCausalLM", prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return the greedy answer of `transformers`, without an early end."""
    import torch

    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]), max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False
        )
    return output[0, len(prompt) :].tolist()


def chunk_step(tokens: Sequence[int], start: int) -> StepInput:
    """Return a step that asks at each token for the logprob of the next one and for the best token."""
    chunk = tokens[start : start + CHUNK_TOKENS]
    sampling = stack_sampling([{"num_top": 1}] * len(chunk))
    following = tokens[start + 1 : start + CHUNK_TOKENS + 1]
    sampling["target"][: len(following)] = following
    table = np.arange(LIMITS.num_blocks, dtype=np.int32)
    return replace(prompt_step(chunk, table, context=start, rows=range(len(chunk))), sampling=sampling)


def _torch_name(name: str) -> str:
    if not name.startswith("layers."):
        return {"embed": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}[name] + ".weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def _tensor(weights: WeightSource, name: str, dtype: "torch.dtype") -> "torch.Tensor":
    import torch

    values = decode(weights.load(name))
    return torch.from_numpy(np.array(values[0] if len(values) == 1 else values)).to(dtype)
