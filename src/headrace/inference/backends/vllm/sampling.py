"""
The arguments of vLLM's `SamplingParams` for a choice, and refusals of what vLLM does not compute.

vLLM only draws tokens: stop strings, text, `n` and `best_of` are handled on our side. Pure; needs no vLLM.
"""

import json
from typing import Any

from headrace.core.errors import InvalidRequest
from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.choice import Choice

_MAX_TEMPERATURE = 2.0
_SEED_MASK = 2**63 - 1


def check_params(params: SamplingParams, *, speculates: bool) -> None:
    """Raise `InvalidRequest` for a parameter that this backend cannot apply, or not if it verifies draft tokens."""
    if params.typical_p != 1.0:
        raise InvalidRequest(
            f"`typical_p` is {params.typical_p}; expected 1 (off), because this server runs vLLM, which has no "
            "typical sampling. Use top_p.",
            param="typical_p",
        )
    if params.temperature > _MAX_TEMPERATURE:
        raise InvalidRequest(
            f"`temperature` is {params.temperature}; expected at most {_MAX_TEMPERATURE:g}, the limit of vLLM.",
            param="temperature",
        )
    if params.bad_words:
        text = "`bad_words` is set; expected it unset, because vLLM runs here without a tokenizer. Use logit_bias."
        raise InvalidRequest(text, param="bad_words")
    for name in ("min_p", "logit_bias") if speculates else ():
        if getattr(params, name):
            raise InvalidRequest(
                f"`{name}` is set; expected it unset, because this server runs vLLM with speculative decoding, which "
                "does not apply it.",
                param=name,
            )


def sampling_arguments(choice: Choice) -> dict[str, Any]:
    """Return the arguments for the tokens of one choice, without its grammar."""
    sequence = choice.sequence
    params = sequence.params
    return {
        "n": 1,
        # One token even if none is wanted: prompt logprobs arrive with it.
        "max_tokens": max(1, sequence.max_total_tokens - sequence.num_prompt_tokens),
        # As in our engine, a grammar decides when the answer may end.
        "min_tokens": params.min_new_tokens if grammar_source_of(choice) is None else 0,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "allowed_token_ids": list(params.allowed_token_ids) or None,
        # Without a seed from the client the draws of all requests share a generator, which is faster.
        "seed": None if params.seed is None else sequence.seed & _SEED_MASK,
        "logprobs": params.logprobs,
        "prompt_logprobs": params.prompt_logprobs if sequence.scores_prompt else None,
        # The tokens that end an answer are ours to name: those of generation_config.json are among them.
        "ignore_eos": True,
        "stop_token_ids": sorted(choice.end_ids),
        "detokenize": False,
        "skip_clone": True,
    }


def grammar_source_of(choice: Choice) -> str | None:
    """Return llguidance's form of a choice's grammar, or None."""
    return None if choice.extras is None or choice.extras.grammar is None else choice.extras.grammar.source


def structured_output_arguments(source: str) -> dict[str, str]:
    """
    Return the arguments of vLLM's `StructuredOutputsParams` for a grammar in llguidance's form.

    vLLM's backend `guidance` is llguidance too, and reads its options from the key `x-guidance` of a schema.
    """
    if not source.startswith("{"):
        return {"grammar": source}
    (grammar,) = json.loads(source)["grammars"]
    schema = grammar.get("json_schema")
    return {"grammar": grammar["lark_grammar"]} if schema is None else {"json": json.dumps(schema)}
