"""
Fields of OpenAI's, vLLM's, SGLang's and TGI's chat and completion requests that are not applied here.

Source: OpenAI API reference; vLLM `entrypoints/openai/*/protocol.py` (0.32); SGLang `entrypoints/openai/protocol.py`;
TGI `router/src/lib.rs` (ChatRequest).
"""

from collections.abc import Mapping

from headrace.wire.fields import SAMPLING_NO_EFFECT, SAMPLING_REFUSED, Refused

COMMON_REFUSED: Mapping[str, Refused] = {
    **{name: refused for name, refused in SAMPLING_REFUSED.items() if name != "repetition_detection"},
    "prompt_logprobs": Refused(
        "responses have no field for them", "Completions return them with 'echo' and 'logprobs'."
    ),
    "return_token_ids": Refused("responses contain no token ids", "TGI's '/generate' returns them with 'details'."),
    "return_tokens_as_token_ids": Refused("logprobs identify tokens by their text"),
    "return_hidden_states": Refused("hidden states are not available"),
    "return_routed_experts": Refused("the experts that a token took are not returned"),
    "return_cached_tokens_details": Refused(
        "only the number of cached tokens is reported", "See 'usage.prompt_tokens_details'."
    ),
    "kv_transfer_params": Refused("KV cache transfer between servers is not supported"),
    "ec_transfer_params": Refused("encoder cache transfer between servers is not supported"),
    "vllm_xargs": Refused("the server has no custom extensions"),
    "custom_params": Refused("custom logits processors are not supported"),
    "custom_logit_processor": Refused("custom logits processors are not supported"),
    "stop_regex": Refused("stop conditions are strings and token ids", "Use 'stop'."),
    "lora_path": Refused("an adapter is chosen by its name", "Name it in 'model'."),
    "session_params": Refused("stateful sessions are not supported"),
}

CHAT_REFUSED: Mapping[str, Refused] = {
    **COMMON_REFUSED,
    "functions": Refused("it was replaced by 'tools'", "Send 'tools'."),
    "function_call": Refused("it was replaced by 'tool_choice'", "Send 'tool_choice'.", neutral="none"),
    "modalities": Refused("the model generates only text", neutral=["text"]),
    "audio": Refused("the model generates only text"),
    "web_search_options": Refused("the server has no web search"),
    "moderation": Refused("the server has no moderation"),
    "verbosity": Refused(
        "models here have no verbosity setting", "Ask for it in the prompt, or set 'max_tokens'.", neutral="medium"
    ),
    "echo": Refused("responses do not repeat the last message"),
    "chat_template": Refused("clients may not run templates on the server", "Start the server with --chat-template."),
    "add_special_tokens": Refused("the chat template adds the special tokens"),
    "documents": Refused("documents are not passed to the chat template", "Put them into a message."),
    "reasoning": Refused("OpenAI names it differently", "Use 'reasoning_effort' or 'chat_template_kwargs'."),
    "task": Refused("no supported chat template has quick tasks"),
    "input_ids": Refused("a chat is sent as messages", "Send token ids as the 'prompt' of /v1/completions."),
    "tool_prompt": Refused("the chat template determines how tools are described"),
    "return_prompt_text": Refused("responses do not repeat the prompt", "'/chat_tokenize' returns its text."),
    "return_prompt_token_ids": Refused("responses do not repeat the prompt", "'/chat_tokenize' returns its tokens."),
    "return_meta_info": Refused("responses contain only OpenAI's fields"),
}

COMPLETIONS_REFUSED: Mapping[str, Refused] = {
    **COMMON_REFUSED,
    "suffix": Refused("fill-in-the-middle is not supported"),
    "prompt_embeds": Refused("prompts are text or token ids"),
    "add_special_tokens": Refused("the tokenizer always adds its special tokens", "Send token ids.", neutral=True),
}

NO_EFFECT = SAMPLING_NO_EFFECT | frozenset(
    {
        # tracing, billing and storage
        "metadata",
        "request_id",
        "rid",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "custom_labels",
        "extra_key",
        # speed and routing
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "routed_dp_rank",
        "ngram_corpus_id",
        # options of inputs and outputs that are not supported
        "images_config",
        "max_dynamic_patch",
        "min_dynamic_patch",
        "use_audio_in_video",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "return_mm_kwargs",
        "return_token_offsets",
        "routed_experts_prompt_start",
        "routed_experts_start_len",
        "stream_reasoning",
    }
)
