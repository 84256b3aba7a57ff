"""vLLM's `AsyncLLM` behind the few calls that `engine` makes. Imports vLLM: set its environment variables first."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import fields
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from headrace.inference.backends.vllm.adapters import AdapterFacts
from headrace.inference.backends.vllm.sampling import grammar_source_of, sampling_arguments, structured_output_arguments
from headrace.inference.backends.vllm.stats import StepStats
from headrace.inference.backends.vllm.watchdog import Watchdog
from headrace.inference.engine.core.choice import Choice

_GRAMMARS = "guidance"


class _CheckedParams(SamplingParams):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """
    Parameters whose grammar is known to compile.

    vLLM compiles each grammar once more on the event loop to check it, up to a second for the largest.
    """

    def _validate_structured_outputs(self, *_: object) -> None:
        if self.structured_outputs is not None:
            self.structured_outputs._backend = _GRAMMARS  # noqa: SLF001 - what the method does besides its checks


class _Reporter(StatLoggerBase):  # type: ignore[misc]
    """Passes vLLM's reports on; one object for each engine, of which there is one."""

    def __init__(self, stats: StepStats) -> None:
        self._stats = stats

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: object, **__: object) -> None:
        self._stats.record(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Log nothing: the server logs the sizes."""


def argument_names() -> set[str]:
    return {field.name for field in fields(AsyncEngineArgs)}


class AsyncLLMClient:
    """A started `AsyncLLM`; `generate` and the adapters are for one event loop."""

    def __init__(self, arguments: Mapping[str, Any], stats: StepStats, watchdog: Watchdog) -> None:
        """Start vLLM's processes; blocks until the model is loaded. `shutdown` closes the watchdog."""
        self._watchdog = watchdog
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments),
            usage_context=UsageContext.ENGINE_CONTEXT,
            stat_loggers=[lambda *_: _Reporter(stats)],
        )
        self.config = self._llm.vllm_config
        self.vocab_size = int(self.config.model_config.get_vocab_size())
        self.is_speculating = self.config.speculative_config is not None
        stats.num_blocks = self.config.cache_config.num_gpu_blocks or 0
        stats.block_tokens = self.config.cache_config.block_size or 0

    @property
    def has_died(self) -> bool:
        """True once a process of vLLM has ended by itself, or its outputs are not read any more."""
        return bool(self._llm.errored)

    def generate(self, choice: Choice, adapter: LoRARequest | None) -> AsyncGenerator[RequestOutput, None]:
        """Return the outputs of a choice, each with its new tokens."""
        sequence = choice.sequence
        source = grammar_source_of(choice)
        params = _CheckedParams(
            **sampling_arguments(choice),
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=None
            if source is None
            else StructuredOutputsParams(**structured_output_arguments(source)),
        )
        # The root hash of our prefix cache stands for the request's salt and its adapter's content.
        prompt = tokens_input(
            sequence.tokens[: sequence.num_prompt_tokens].tolist(), cache_salt=sequence.root_hash.hex()
        )
        request_id = f"{choice.request_id}-{choice.index}"
        outputs: AsyncGenerator[RequestOutput, None] = self._llm.generate(
            prompt, params, request_id, lora_request=adapter
        )
        return outputs

    async def add_adapter(self, facts: AdapterFacts, adapter_id: int) -> LoRARequest:
        """Load an adapter under an id and a name that no other content has had: vLLM caches prefixes by name."""
        adapter = LoRARequest(f"{facts.identity}-{adapter_id}", adapter_id, str(facts.path))
        await self._llm.add_lora(adapter)
        return adapter

    async def remove_adapter(self, adapter: LoRARequest) -> None:
        await self._llm.remove_lora(adapter.lora_int_id)

    def kill(self) -> None:
        """Begin to kill vLLM's processes; returns at once."""
        self._watchdog.kill()

    def shutdown(self, timeout_s: float) -> None:
        """Stop vLLM's processes; blocks."""
        try:
            self._llm.shutdown(timeout_s)
        finally:
            self._watchdog.close()
