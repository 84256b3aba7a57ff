"""
Mistral's own folders: `params.json` and `consolidated*.safetensors`, with the rows of q and k interleaved.

Source: mistral-inference `transformer.py`, `args.py`; vLLM `transformers_utils/configs/mistral.py`.
"""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import EXPERT_INDEX, Family
from headrace.inference.models.families.reading import config_spec, uniform_window
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

MODEL_TYPE: Final = "mistral_params"
"""The `model_type` that a folder with `params.json` counts as."""
DEFAULT_POSITIONS: Final = 32_768
"""Context of older files, which name none; all models of that time support at least this."""
_KEYS: Final = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "hidden_dim",
    "rms_norm_eps": "norm_eps",
    "hidden_act": "activation",
    "tie_word_embeddings": "tied_embeddings",
}
_IGNORED: Final = ("vision_encoder", "multimodal")
_FEED_FORWARD: Final = f"feed_forward.experts.{EXPERT_INDEX}"


def config_of_params(params: Fields) -> Fields:
    """
    Return the values of a `params.json` under the names of a `config.json`.

    Raises `UnsupportedModel` if it is Meta's, or another network's.
    """
    if params.has("multiple_of"):
        raise UnsupportedModel(
            f"{params.source} is a checkpoint in the format of Meta; expected a config.json, or Mistral's params.json. "
            "Use the checkpoint in the format of Hugging Face."
        )
    params.refuse("model_type", "a network of Mistral", unless=("transformer",))
    params.refuse("qk_nope_head_dim", "latent attention")
    for key in _IGNORED:
        params.sub(key).refuse("whisper_model_args", "an audio encoder")
    values = {**params.without(*_IGNORED).renamed(_KEYS).values, "model_type": MODEL_TYPE}
    return Fields(values | _quantization(params.sub("quantization")), params.source)


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """
    Read the values of a `params.json`.

    Beyond the original context queries are scaled by position (`llama_4_scaling`), so this context ends there.
    """
    positions = config.whole("max_position_embeddings", config.whole("max_seq_len", DEFAULT_POSITIONS))
    if isinstance(config.values.get("sliding_window"), list):
        config.refuse("sliding_window", "a window on some layers only")
    rope = {"rope_parameters": _yarn(config)} if config.has("yarn") else {}
    values = Fields({**config.values, **rope, "max_position_embeddings": positions}, config.source)
    spec = config_spec(family, values, moe=_experts(config) if config.has("moe") else None)
    if config.has("llama_4_scaling"):
        unscaled = config.sub("llama_4_scaling").whole("original_max_position_embeddings")
        spec = replace(spec, max_positions=min(spec.max_positions, unscaled))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def _yarn(config: Fields) -> dict[str, object]:
    yarn = config.sub("yarn")
    scale = {} if yarn.flag("apply_scale", default=True) else {"attention_factor": 1.0}
    return scale | {
        "rope_type": "yarn",
        "rope_theta": config.number("rope_theta", 10_000.0),
        "factor": yarn.number("factor"),
        "original_max_position_embeddings": yarn.whole("original_max_position_embeddings"),
        "beta_fast": yarn.number("beta", 32.0),
        "beta_slow": yarn.number("alpha", 1.0),
    }


def _experts(config: Fields) -> MoeSpec:
    moe = config.sub("moe")
    moe.refuse("num_shared_experts", "shared experts in this format", unless=(0,))
    return MoeSpec(
        num_experts=moe.whole("num_experts"),
        top_k=moe.whole("num_experts_per_tok"),
        expert_size=config.whole("intermediate_size"),
        renormalize=True,
    )


def _quantization(quantization: Fields) -> dict[str, object]:
    if not quantization.values:
        return {}
    if quantization.has("quant_method"):
        return {"quantization_config": quantization.values}
    quantization.refuse("qformat_weight", "the format of the weights", unless=("fp8_e4m3",))
    return {"quantization_config": {"quant_method": "fp8"}}


MISTRAL_PARAMS: Final = Family(
    name=MODEL_TYPE,
    models="Mistral and Mixtral in Mistral's own folders (`params.json`)",
    verified=("layout",),
    spec_from_config=_from_config,
    tensors={
        "layers": "layers",
        "embed": "tok_embeddings.weight",
        "final_norm": "norm.weight",
        "lm_head": "output.weight",
        "attn_norm": "attention_norm.weight",
        "q": "attention.wq.weight",
        "k": "attention.wk.weight",
        "v": "attention.wv.weight",
        "o": "attention.wo.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "feed_forward.w1.weight",
        "up": "feed_forward.w3.weight",
        "down": "feed_forward.w2.weight",
        "router": "feed_forward.gate.weight",
        "expert_gate": f"{_FEED_FORWARD}.w1.weight",
        "expert_up": f"{_FEED_FORWARD}.w3.weight",
        "expert_down": f"{_FEED_FORWARD}.w2.weight",
    },
    interleaved_rope=True,
)
