"""
Fields of OpenAI's, vLLM's, SGLang's and TGI's chat and completion requests that are not applied here.

Source: OpenAI API reference; vLLM `entrypoints/openai/*/protocol.py` (0.32); SGLang `entrypoints/openai/protocol.py`;
TGI `router/src/lib.rs` (ChatRequest).
"""

from collections.abc import Mapping

from headrace.wire.fields import SAMPLING_NO_EFFECT, SAMPLING_REFUSED, Refused

_COMMON: Mapping[str, Refused] = {
    **SAMPLING_REFUSED,
    "prompt_logprobs": Refused("it has no place in answers", "Completions give them with 'echo' and 'logprobs'."),
    "return_token_ids": Refused("answers hold no token ids", "TGI's '/generate' gives them with 'details'."),
    "return_tokens_as_token_ids": Refused("logprobs name tokens by their text"),
    "return_hidden_states": Refused("hidden states are not kept"),
    "return_routed_experts": Refused("routing of experts is not kept"),
    "return_cached_tokens_details": Refused("answers hold their number only", "See 'usage.prompt_tokens_details'."),
    "kv_transfer_params": Refused("the KV cache is not transferred between servers"),
    "ec_transfer_params": Refused("the encoder cache is not transferred between servers"),
    "vllm_xargs": Refused("there are no custom extensions"),
    "custom_params": Refused("there are no custom logit processors"),
    "custom_logit_processor": Refused("requests cannot bring logit processors"),
    "stop_regex": Refused("answers stop at strings and token ids", "Use 'stop'."),
    "lora_path": Refused("there are no LoRA adapters"),
    "session_params": Refused("there are no stateful sessions"),
}

CHAT_REFUSED: Mapping[str, Refused] = {
    **_COMMON,
    "functions": Refused("it was replaced by 'tools'", "Send 'tools'."),
    "function_call": Refused("it was replaced by 'tool_choice'", "Send 'tool_choice'.", neutral="none"),
    "modalities": Refused("answers are text", neutral=["text"]),
    "audio": Refused("answers are text"),
    "web_search_options": Refused("there is no web search"),
    "moderation": Refused("there is no moderation"),
    "verbosity": Refused(
        "the length of answers cannot be asked for", "Use the prompt or 'max_tokens'.", neutral="medium"
    ),
    "echo": Refused("the last message is not repeated"),
    "continue_final_message": Refused("the last message is not continued, a new one is begun"),
    "chat_template": Refused("a template is a program", "Start the server with --chat-template."),
    "add_special_tokens": Refused("the chat template writes the special tokens"),
    "documents": Refused("documents are not given to the chat template", "Write them into a message."),
    "include_reasoning": Refused("reasoning is not told apart from the answer", neutral=True),
    "reasoning": Refused("it is not OpenAI's name", "Use 'reasoning_effort' or 'chat_template_kwargs'."),
    "task": Refused("no chat template has quick tasks"),
    "input_ids": Refused("a chat is messages", "Send token ids as the 'prompt' of /v1/completions."),
    "tool_prompt": Refused("the chat template writes the tools"),
    "return_prompt_text": Refused("answers do not repeat the prompt", "'/chat_tokenize' gives its text."),
    "return_prompt_token_ids": Refused("answers do not repeat the prompt", "'/chat_tokenize' gives its tokens."),
    "return_meta_info": Refused("answers hold OpenAI's fields"),
}

COMPLETIONS_REFUSED: Mapping[str, Refused] = {
    **_COMMON,
    "suffix": Refused("text is not filled in before a suffix"),
    "prompt_embeds": Refused("prompts are text or token ids"),
    "add_special_tokens": Refused("special tokens are added as the tokenizer does", "Send token ids.", neutral=True),
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
        # parts of requests or answers that are not there
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
        "separate_reasoning",
        "stream_reasoning",
    }
)
