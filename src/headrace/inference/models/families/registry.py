"""The registry of families, and the choice of the one that reads a checkpoint."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.afmoe import AFMOE
from headrace.inference.models.families.alibi import BLOOM, MPT
from headrace.inference.models.families.apertus import APERTUS
from headrace.inference.models.families.arcee import ARCEE
from headrace.inference.models.families.baichuan import BAICHUAN
from headrace.inference.models.families.bamba import BAMBA
from headrace.inference.models.families.bert import BERT, ROBERTA
from headrace.inference.models.families.chatglm import CHATGLM
from headrace.inference.models.families.cohere import COHERE, COHERE2
from headrace.inference.models.families.deci import DECI
from headrace.inference.models.families.deepseek import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM4_MOE_LITE,
    GLM_MOE_DSA,
)
from headrace.inference.models.families.dots import DOTS1
from headrace.inference.models.families.ernie import ERNIE4_5, ERNIE4_5_MOE
from headrace.inference.models.families.exaone3 import EXAONE
from headrace.inference.models.families.exaone4 import EXAONE4
from headrace.inference.models.families.exaone_moe import EXAONE_MOE
from headrace.inference.models.families.falcon import FALCON
from headrace.inference.models.families.falcon_h1 import FALCON_H1
from headrace.inference.models.families.family import Family, GgufHeader
from headrace.inference.models.families.gemma import GEMMA, GEMMA3
from headrace.inference.models.families.gemma2 import GEMMA2, VAULTGEMMA
from headrace.inference.models.families.gemma4 import GEMMA4
from headrace.inference.models.families.glm import GLM, GLM4
from headrace.inference.models.families.glm_moe import GLM4_MOE
from headrace.inference.models.families.gpt2 import GPT2
from headrace.inference.models.families.gpt_neox import GPT_NEOX
from headrace.inference.models.families.gpt_oss import GPT_OSS
from headrace.inference.models.families.gptj import GPTJ
from headrace.inference.models.families.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE
from headrace.inference.models.families.hunyuan import HUNYUAN, HUNYUAN_MOE, HY_V3
from headrace.inference.models.families.internlm import INTERNLM2, INTERNLM3
from headrace.inference.models.families.kimi_linear import KIMI_LINEAR
from headrace.inference.models.families.laguna import LAGUNA
from headrace.inference.models.families.lfm2 import LFM2, LFM2_MOE, LFM3
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.mamba import MAMBA2
from headrace.inference.models.families.minicpm import MINICPM
from headrace.inference.models.families.minicpm3 import MINICPM3
from headrace.inference.models.families.minimax import MINIMAX_M2
from headrace.inference.models.families.mistral import MINISTRAL, MINISTRAL3, MISTRAL
from headrace.inference.models.families.mistral4 import MISTRAL4
from headrace.inference.models.families.mistral_params import MISTRAL_PARAMS
from headrace.inference.models.families.mixtral import MIXTRAL
from headrace.inference.models.families.modernbert import MODERNBERT
from headrace.inference.models.families.muse_glimmer import MUSE_GLIMMER
from headrace.inference.models.families.nemotron import NEMOTRON
from headrace.inference.models.families.nemotron_h import NEMOTRON_H
from headrace.inference.models.families.nomic_bert import NOMIC_BERT
from headrace.inference.models.families.olmo import OLMO, OLMO2, OLMO3
from headrace.inference.models.families.olmo_hybrid import OLMO_HYBRID
from headrace.inference.models.families.olmoe import OLMOE
from headrace.inference.models.families.openelm import OPENELM
from headrace.inference.models.families.opt import OPT
from headrace.inference.models.families.phi import PHI3
from headrace.inference.models.families.phi2 import PHI
from headrace.inference.models.families.phimoe import PHIMOE
from headrace.inference.models.families.qwen import QWEN2, QWEN2_VL, QWEN3, QWEN3_VL
from headrace.inference.models.families.qwen1 import QWEN
from headrace.inference.models.families.qwen_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from headrace.inference.models.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from headrace.inference.models.families.reading import gguf_spec, read_config
from headrace.inference.models.families.seed_oss import SEED_OSS
from headrace.inference.models.families.smollm3 import SMOLLM3
from headrace.inference.models.families.stablelm import STABLELM
from headrace.inference.models.families.starcoder2 import STARCODER2
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

FAMILIES: Final = (
    *(LLAMA, MISTRAL, MISTRAL_PARAMS, MINISTRAL, MINISTRAL3, QWEN2, QWEN3, GEMMA, GEMMA3, GEMMA4),
    *(QWEN2_VL, QWEN3_VL, GRANITE_HYBRID, MINICPM, ERNIE4_5, SEED_OSS),
    *(INTERNLM2, INTERNLM3, QWEN, BAICHUAN, CHATGLM, EXAONE, ARCEE, APERTUS, DECI, OPENELM),
    *(PHI3, GRANITE, SMOLLM3, GLM, GLM4, GEMMA2, VAULTGEMMA, MUSE_GLIMMER, OLMO, OLMO2, OLMO3, OLMO_HYBRID, EXAONE4),
    *(COHERE, COHERE2, STABLELM, STARCODER2, PHI, NEMOTRON, FALCON, GPT_NEOX, GPT2, GPTJ, OPT, BLOOM, MPT),
    *(MIXTRAL, QWEN2_MOE, QWEN3_MOE, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, GRANITE_MOE, OLMOE, GPT_OSS, PHIMOE),
    *(GLM4_MOE, ERNIE4_5_MOE, MINIMAX_M2, DOTS1, EXAONE_MOE, HUNYUAN, HUNYUAN_MOE, HY_V3, LAGUNA, AFMOE),
    *(LFM2, LFM2_MOE, LFM3),
    *(MAMBA2, BAMBA, NEMOTRON_H, FALCON_H1),
    *(DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V32, GLM4_MOE_LITE, GLM_MOE_DSA, MINICPM3, MISTRAL4),
    KIMI_LINEAR,
    *(BERT, ROBERTA, MODERNBERT, NOMIC_BERT),
)
NESTED: Final = {
    "gemma3": "gemma3_text",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "exaone4_5": "exaone4",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "mistral3": "mistral",
    "muse_glimmer": "muse_glimmer_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
}
"""`model_type` of networks that also read images, and that of their text part."""
_SHARED_KEYS: Final = ("tie_word_embeddings", "quantization_config", "eos_token_id", "bos_token_id", "torch_dtype")
"""Keys beside `text_config` that also count for the text part."""
_MISSING: Final = {
    **dict.fromkeys(("glm5_next", "hy_v4", "qwen4_exp"), "several residual streams and sparse attention"),
    "mllama": "cross-attention to images",
    "gemma3n": "several residual streams and embeddings for each layer",
    "t5": "an encoder",
    **dict.fromkeys(("mpnet", "deberta", "deberta-v2"), "relative positions"),
    **dict.fromkeys(("mamba", "jamba", "zamba2"), "a recurrent state"),
    "rwkv": "a recurrent state in place of attention",
    "deepseek_v4": "compressed keys and several residual streams",
    "llama4": "attention in chunks",
    "mimo_v2_flash": "values of another size than the keys",
}
"""Missing features by `model_type`, for networks that are often requested."""
_ELSEWHERE: Final = {
    "a recurrent state": "--backend vllm runs it",
    "an encoder": "--backend transformers runs it",
    "a recurrent state in place of attention": "no other backend has it",
    "relative positions": "no other backend computes embeddings",
}
"""The backends that have a missing feature, unless transformers and vLLM both do."""
_MAX_INT: Final = (1 << 31) - 1
_RUN_ELSEWHERE: Final = " This network needs {part}, which the native backend does not have; {backends}."
_MAY_RUN_ELSEWHERE: Final = (
    " Without --backend, Headrace takes transformers or vLLM if they are installed and have the network."
)


def from_config(config: Fields) -> tuple[Family, ModelSpec]:
    """Return the family and the spec of a config.json; raises `BrokenModel` or `UnsupportedModel`."""
    config = text_part(config)
    model_type = config.text("model_type", "")
    for family in FAMILIES:
        if model_type in family.model_types:
            spec = read_config(family, config)
            _refuse_wide(spec, config.source)
            return family.variant_of(spec), spec
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    elsewhere = _MAY_RUN_ELSEWHERE
    if (part := _MISSING.get(model_type)) is not None:
        elsewhere = _RUN_ELSEWHERE.format(part=part, backends=backends_with(part))
    raise UnsupportedModel(
        f"{config.source}: model_type is {model_type!r:.200}; expected one of {known}.{elsewhere}",
        model_type=model_type,
    )


def backends_with(part: str) -> str:
    """Return which backends have a feature that the native one lacks."""
    return _ELSEWHERE.get(part, "--backend transformers or vllm runs it")


def refused_networks() -> Mapping[str, str]:
    return _MISSING


def family_of(spec: ModelSpec) -> Family:
    """Return the family that read a spec; raises `UnsupportedModel` if there is none."""
    for family in FAMILIES:
        if family.name == spec.family:
            return family.variant_of(spec)
    raise UnsupportedModel(f"No family is called {spec.family!r}.", family=spec.family)


def text_part(config: Fields) -> Fields:
    """Return the config of the network that reads text: `text_config` of those that also read images."""
    kind = NESTED.get(config.text("model_type", ""))
    if kind is None:
        return config
    if not config.has("text_config"):  # Qwen VL, as transformers 4 writes it
        others = {key: value for key, value in config.values.items() if key != "vision_config"}
        return Fields({**others, "model_type": kind}, config.source)
    shared = {key: config.values[key] for key in _SHARED_KEYS if config.has(key)}
    part = config.sub("text_config")
    return Fields({"model_type": kind, **part.values, **shared}, part.source)


def _refuse_wide(value: object, source: str, name: str = "") -> None:
    """Refuse whole numbers in any part of a network that runners, which count in 32 bits, cannot hold."""
    if is_dataclass(value):
        for part in fields(value):
            _refuse_wide(getattr(value, part.name), source, part.name)
    elif isinstance(value, tuple):
        for item in value:
            _refuse_wide(item, source, name)
    elif isinstance(value, int) and value > _MAX_INT:
        raise BrokenModel(f"{source}: {name} of the network is {value}; expected at most {_MAX_INT}.")


def from_gguf(architecture: str, header: GgufHeader) -> tuple[Family, ModelSpec]:
    for family in FAMILIES:
        if architecture in family.gguf_architectures:
            spec = (family.spec_from_gguf or gguf_spec)(family, header)
            _refuse_wide(spec, header.fields.source)
            return family.variant_of(spec), spec
    known = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise UnsupportedModel(
        f"{header.fields.source}: the architecture is {architecture!r:.200}; expected one of {known}. "
        "Other backends read no GGUF files, but may run the folder from which this one was converted.",
        architecture=architecture,
    )
