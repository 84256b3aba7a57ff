"""
Encoder-decoder networks (T5, BART) of transformers, in our engine.

The prompt goes to the encoder, and each step adds a token to the answers of the running requests. Prefix cache, draft
tokens, adapters and logprobs of the prompt are not available for them.
"""

from dataclasses import replace

from headrace.core.errors import InvalidRequest, SettingsError
from headrace.inference.backends.hf_parts import MAX_STEP_ROWS, device_budget, model_info
from headrace.inference.engine.config import EngineConfig, ModelSource, fit_to_runner
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.assembly import text_parts
from headrace.inference.engine.loading.plan import ContextLength, limits_within, step_limits
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.engine.service.thread import EngineThread
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.model import HfModel
from headrace.inference.runner.transformers.loading import NetworkSource, load_network, make_seq_to_seq_runner

_DEFAULT_POSITIONS = 1024
"""Prompt and answer of a network whose config names no length."""


class _EncoderDecoderThread(EngineThread):
    """An engine that shares no prefixes, and refuses what an encoder-decoder cannot compute before it is queued."""

    def add(self, choices: list[Choice]) -> None:
        """
        Queue choices for the next step.

        Raises:
            InvalidRequest: A request asks for logprobs of its prompt.
            Unavailable: The thread has ended.
        """
        if any(choice.sequence.params.prompt_logprobs is not None for choice in choices):
            raise InvalidRequest(
                "Logprobs of the prompt are requested, but the encoder of this model computes none.",
                param="prompt_logprobs",
            )
        for choice in choices:
            choice.sequence.shares_blocks = False  # an encoder's output for a token depends on the whole prompt
        super().add(choices)


def load_seq_to_seq(
    model: HfModel,
    network: NetworkSource,
    source: ModelSource,
    config: EngineConfig,
    observer: EngineObserver | None,
) -> AsyncEngine:
    """
    Load an encoder-decoder and return its engine, not started yet.

    Raises:
        UserError: The network cannot be read or run, a setting is invalid or memory is insufficient.
    """
    if config.max_loras:
        raise SettingsError(
            "enable_lora is on, but encoder-decoder networks have no adapters with the transformers backend. "
            "Turn it off.",
            name="enable_lora",
        )
    is_relative = hasattr(network.config, "relative_attention_num_buckets")
    context = ContextLength(
        default=model.max_positions or _DEFAULT_POSITIONS,
        longest=None if is_relative else model.max_positions,
        takes_rope=False,
    )
    limits = replace(
        limits_within(config, context, max_model_len=source.max_model_len, is_causal=False),
        enable_prefix_caching=False,
        max_draft_tokens=0,
        max_step_s=None,  # a prompt cannot be cut into smaller chunks
    )
    budget = device_budget(config)
    largest = step_limits(limits, config, max_rows=MAX_STEP_ROWS)
    runner = make_seq_to_seq_runner(
        load_network(network, budget), network, largest, budget, vocab_size=model.vocab_size
    )
    limits = fit_to_runner(limits, runner.limits)
    parts = text_parts(model)
    table = TokenTable(parts.tokenizer)
    return AsyncEngine(
        _EncoderDecoderThread(runner, table, limits),
        parts,
        table,
        limits,
        replace(model_info(source, model, limits, runner, config), is_encoder_decoder=True),
        observer=observer,
    )
