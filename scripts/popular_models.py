"""
The 40 text models that people pull most, for the table of `docs/models.md`.

No source ranks all of them. The first nine have ranks of June 2026: downloads on the Hugging Face Hub per month since
the release (solmaz.io, "Popularity rankings for open models"), or in the last 30 days (eyesinai.com). The others are
releases of the organisations that lead these lists, and models that many tutorials use.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PopularModel:
    """A model, its `model_type` in config.json and its architecture in GGUF files."""

    name: str
    model_type: str
    architecture: str


POPULAR: Final = (
    PopularModel("Qwen3-VL-2B (text part)", "qwen3_vl", "qwen3vl"),
    PopularModel("Qwen3.6-35B-A3B", "qwen3_5_moe", "qwen35moe"),
    PopularModel("Qwen3.6-27B", "qwen3_5", "qwen35"),
    PopularModel("Gemma 4 26B-A4B", "gemma4", "gemma4"),
    PopularModel("Gemma 4 31B", "gemma4", "gemma4"),
    PopularModel("Qwen3-0.6B", "qwen3", "qwen3"),
    PopularModel("Qwen3-4B", "qwen3", "qwen3"),
    PopularModel("gpt-oss-20b", "gpt_oss", "gpt-oss"),
    PopularModel("Gemma 4 E4B", "gemma4", "gemma4"),
    PopularModel("Gemma 4 E2B", "gemma4", "gemma4"),
    PopularModel("Qwen3.5-4B", "qwen3_5", "qwen35"),
    PopularModel("Qwen3.5-9B", "qwen3_5", "qwen35"),
    PopularModel("Qwen3.8-27B", "qwen3_5", "qwen35"),
    PopularModel("Qwen3-30B-A3B", "qwen3_moe", "qwen3moe"),
    PopularModel("Qwen3-Coder-30B-A3B", "qwen3_moe", "qwen3moe"),
    PopularModel("Qwen3-Coder-Next 80B-A3B", "qwen3_next", "qwen3next"),
    PopularModel("Qwen2.5-7B-Instruct", "qwen2", "qwen2"),
    PopularModel("Qwen2.5-VL-7B (text part)", "qwen2_5_vl", "qwen2vl"),
    PopularModel("Llama-3.1-8B-Instruct", "llama", "llama"),
    PopularModel("Llama-3.2-1B-Instruct", "llama", "llama"),
    PopularModel("Gemma 3 4B (text part)", "gemma3", "gemma3"),
    PopularModel("Gemma 3n E4B", "gemma3n", "gemma3n"),
    PopularModel("Mistral-7B-Instruct", "mistral", "llama"),
    PopularModel("Mistral-Small-3.2-24B (text part)", "mistral3", "llama"),
    PopularModel("Phi-4-mini-instruct", "phi3", "phi3"),
    PopularModel("SmolLM3-3B", "smollm3", "smollm3"),
    PopularModel("LFM2.5-1.2B", "lfm2", "lfm2"),
    PopularModel("LFM2-8B-A1B", "lfm2_moe", "lfm2moe"),
    PopularModel("Granite-4.0-H-Tiny", "granitemoehybrid", "granitehybrid"),
    PopularModel("Nemotron-3-Nano-30B-A3B", "nemotron_h", "nemotron_h_moe"),
    PopularModel("Falcon-H1-1.5B", "falcon_h1", "falcon-h1"),
    PopularModel("GLM-4.7-Flash", "glm4_moe_lite", "deepseek2"),
    PopularModel("GLM-4.5-Air", "glm4_moe", "glm4moe"),
    PopularModel("DeepSeek-R1-Distill-Qwen-7B", "qwen2", "qwen2"),
    PopularModel("DeepSeek-V3.1", "deepseek_v3", "deepseek2"),
    PopularModel("Kimi-K2-Instruct", "kimi_k2", "deepseek2"),
    PopularModel("MiniMax-M2", "minimax_m2", "minimax-m2"),
    PopularModel("ERNIE-4.5-21B-A3B", "ernie4_5_moe", "ernie4_5-moe"),
    PopularModel("OLMo-3-7B-Instruct", "olmo3", "olmo2"),
    PopularModel("GPT-2", "gpt2", "gpt2"),
)
