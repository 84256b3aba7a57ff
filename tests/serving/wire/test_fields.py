"""Each request field of our dialects is applied, refused by name, or listed as having no effect."""

import dataclasses
import json

import pytest
from huggingface_hub import ChatCompletionInput, TextGenerationInputGenerateParameters
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.lmi import dialect as lmi
from headrace.serving.wire.openai import chat, completions
from headrace.serving.wire.tgi import dialect as tgi
from headrace.serving.wire.torchserve import dialect as torchserve
from tests.serving.wire.samples import CONTEXT
from tests.serving.wire.test_constraints import DIALECTS


def _names(text: str) -> list[str]:
    return text.split()


VLLM = _names(
    """
    add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params frequency_penalty ignore_eos
    include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs max_tokens
    min_p min_tokens model n presence_penalty priority prompt_logprobs repetition_detection repetition_penalty
    request_id response_format return_mm_kwargs return_token_ids return_token_offsets return_tokens_as_token_ids
    routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop
    stop_token_ids stream stream_interval stream_options structured_outputs temperature thinking_token_budget top_k
    top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking guided_json
    guided_regex guided_choice guided_grammar guided_json_object guided_whitespace_pattern guided_decoding_backend
    """
)
VLLM_CHAT = _names(
    """
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents echo include_reasoning
    max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls reasoning_effort
    return_prompt_text tool_choice tools top_logprobs
    """
)
VLLM_COMPLETIONS = ["echo", "prompt", "prompt_embeds", "suffix"]
SGLANG = _names(
    """
    bootstrap_host bootstrap_port bootstrap_room cache_salt custom_labels custom_logit_processor custom_params
    data_parallel_rank disagg_prefill_dp_rank ebnf extra_key ignore_eos images_config logit_bias logprobs lora_path
    max_tokens min_p min_tokens n ngram_corpus_id no_stop_trim priority regex repetition_penalty response_format
    return_cached_tokens_details return_hidden_states return_routed_experts return_token_ids rid routed_dp_rank
    routed_experts_start_len session_id session_params skip_special_tokens stop_regex stop_token_ids top_k user
    """
)
SGLANG_CHAT = _names(
    """
    chat_template_kwargs continue_final_message input_ids max_dynamic_patch min_dynamic_patch reasoning
    reasoning_effort return_meta_info return_prompt_token_ids separate_reasoning stream_reasoning task
    use_audio_in_video
    """
)
LMI = _names(
    """
    do_sample seed temperature repetition_penalty top_k top_p max_new_tokens details return_full_text stop_sequences
    decoder_input_details min_p presence_penalty frequency_penalty n best_of num_beams length_penalty early_stopping
    stop_token_ids include_stop_str_in_output ignore_eos_token logprobs prompt_logprobs skip_special_tokens
    spaces_between_special_tokens min_length bad_sequences stop typical_p truncate watermark
    """
)

ORIGINS = [
    ("OpenAI", chat.FIELDS, [*chat_create_params.CompletionCreateParamsBase.__annotations__, "stream"]),
    ("OpenAI", completions.FIELDS, [*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"]),
    ("vLLM", chat.FIELDS, VLLM + VLLM_CHAT),
    ("vLLM", completions.FIELDS, VLLM + VLLM_COMPLETIONS),
    ("SGLang", chat.FIELDS, SGLANG + SGLANG_CHAT),
    ("SGLang", completions.FIELDS, [*SGLANG, "json_schema", "echo", "suffix"]),
    ("TGI", chat.FIELDS, [field.name for field in dataclasses.fields(ChatCompletionInput)]),
    (
        "TGI",
        tgi.PARAMETER_FIELDS,
        [field.name for field in dataclasses.fields(TextGenerationInputGenerateParameters)],
    ),
    ("LMI", lmi.PARAMETER_FIELDS, LMI),
]
TABLES = {
    "chat": chat.FIELDS,
    "completions": completions.FIELDS,
    "tgi": tgi.PARAMETER_FIELDS,
    "lmi": lmi.PARAMETER_FIELDS,
    "torchserve": torchserve.PARAMETER_FIELDS,
}
REFUSED = [(name, field) for name, table in TABLES.items() for field in table.refused]
BODIES = {"chat": "chat", "completions": "completions", "tgi": "tgi-3", "lmi": "lmi-17", "torchserve": "torchserve"}


def parsed(name, fields):
    dialect = DIALECTS[BODIES[name]]
    start = {"chat": {"messages": [{"role": "user", "content": "hi"}]}, "completions": {"prompt": "hi"}}
    body = {**start[name], **fields} if name in start else {"inputs": "hi", "parameters": fields}
    return dialect.parse(json.dumps(body).encode(), CONTEXT)


@pytest.mark.parametrize(
    ("table", "names"), [case[1:] for case in ORIGINS], ids=[f"{case[0]}-{len(case[2])}" for case in ORIGINS]
)
def test_each_field_of_a_published_client_is_in_a_table(table, names):
    assert set(names) <= table.applied | table.refused.keys() | table.no_effect


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_field_is_in_one_table_only(table):
    assert not table.applied & table.refused.keys()
    assert not table.applied & table.no_effect
    assert not table.refused.keys() & table.no_effect


@pytest.mark.parametrize(("name", "field"), REFUSED, ids=[f"{name}-{field}" for name, field in REFUSED])
def test_a_field_that_is_not_supported_is_refused_by_name(name, field):
    with pytest.raises(InvalidRequest, match="is not supported: ") as caught:
        parsed(name, {field: {"any": ["value", [[[1]]]]}})
    assert caught.value.param == (field if name in {"chat", "completions"} else f"parameters.{field}")
    reply = DIALECTS[BODIES[name]].render_error(caught.value)
    assert 400 <= reply.status < 500
    assert field in reply.body.decode()


@pytest.mark.parametrize(("name", "field"), REFUSED, ids=[f"{name}-{field}" for name, field in REFUSED])
def test_a_neutral_value_of_an_unsupported_field_is_accepted(name, field):
    neutral = TABLES[name].refused[field].neutral
    for value in (None, False, [], {}, "", neutral):
        assert parsed(name, {field: value}).requests


@pytest.mark.parametrize("name", TABLES)
def test_fields_without_effect_are_named_for_the_log(name):
    prefix = "" if name in {"chat", "completions"} else "parameters."
    assert parsed(name, {"surprise": 1, "early_stopping": True}).ignored == (
        f"{prefix}early_stopping",
        f"{prefix}surprise",
    )


def test_a_long_or_deep_value_is_refused_without_being_read():
    body = b'{"messages": [{"role": "user", "content": "hi"}], "echo": ' + b"[" * 400 + b"]" * 400 + b"}"
    with pytest.raises(InvalidRequest, match="'echo' is not supported"):
        DIALECTS["chat"].parse(body, CONTEXT)
