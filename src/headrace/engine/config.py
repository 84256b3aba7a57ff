"""
What an engine is asked to be (`EngineConfig`) and the numbers that come of it (`EngineLimits`).

The server derives an `EngineConfig` from its settings; `assembly` resolves it against the model and the machine.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine, as asked for. `None` and "auto" are resolved when the model is known."""

    model: str
    """Alias, Hub id, folder, `.gguf` file."""
    revision: str | None = None
    served_model_name: str | None = None
    """Name that clients use; None: the model's own."""
    dtype: str = "auto"
    """bf16, w8a8, w4a8, smoothquant (w8a8, smoothed at load); auto: see `formats.choose_formats`."""
    smoothquant_alpha: float | None = None
    """With the dtype smoothquant: its strength; None: searched."""
    kv_dtype: str = "auto"
    """bf16, int8; auto: see `formats.choose_formats`."""
    max_model_len: int | None = None
    """Prompt + answer in tokens; None: the checkpoint's own, at most 8192."""
    max_prompt_tokens: int | None = None
    """None: `max_model_len` - 1."""
    max_num_seqs: int = 64
    """Sequences that run at the same time."""
    max_num_batched_tokens: int = 512
    """Tokens of one step."""
    kv_cache_bytes: int | None = None
    """None: enough for `max_num_seqs` whole contexts, if so much memory is free."""
    max_kv_cache_tokens: int | None = None
    """Upper bound of the KV cache, whatever memory there is; None: no bound."""
    max_memory_bytes: int | None = None
    """Memory to plan with; None: what is free."""
    enable_prefix_caching: bool = True
    max_draft_tokens: int = 8
    """Most tokens that a sequence guesses and verifies in one step, where that pays; 0: none."""
    max_itl_ms: float | None = 75.0
    """While anyone decodes, prompt chunks are sized to keep steps under this; None: no limit."""
    max_queued_requests: int = 256
    """Sequences that may wait beyond those that run; more are refused with `Busy`."""
    max_best_of: int = 16
    max_logprobs: int = 20
    max_stop_strings: int = 16
    threads: int | None = None
    isa: str | None = None
    chat_template: str | None = None
    cache_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The numbers that an engine keeps to, all resolved."""

    max_model_len: int
    max_prompt_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int = 256
    max_best_of: int = 16
    max_logprobs: int = 20
    max_stop_strings: int = 16
    enable_prefix_caching: bool = True
    max_draft_tokens: int = 0
    max_step_s: float | None = 0.1
    """Steps with decoding sequences are kept under this; None: no limit."""
