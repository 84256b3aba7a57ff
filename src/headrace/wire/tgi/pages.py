"""TGI's other routes: `/info`, `/tokenize`, `/chat_tokenize`, `/health`. Source: TGI `router/src/server.rs`."""

from collections.abc import Iterable
from dataclasses import asdict

import msgspec

from headrace.core.generation import ModelInfo, RequestLimits, TextSpan
from headrace.wire.dialect import MAX_CHOICES
from headrace.wire.framing import decode_body, to_json
from headrace.wire.tgi.reply import Version

_DTYPES = {"bf16": "torch.bfloat16"}


def render_unhealthy(reason: str) -> bytes:
    """Render `/health` while the server is not ready, in TGI's format."""
    return to_json({"error": f"unhealthy: {reason}", "error_type": "healthcheck"})


class TokenizeBody(msgspec.Struct):
    """The body of `/tokenize`; `parameters` are accepted without effect."""

    inputs: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)


def parse_tokenize(body: bytes) -> str:
    """Return the text to tokenize. Raises `InvalidRequest`: the body is not a JSON object with a string `inputs`."""
    return decode_body(body, _tokenize_decoder).inputs


def render_tokenize(spans: Iterable[TextSpan]) -> bytes:
    """Render the body of `/tokenize`."""
    return to_json(_spans(spans))


def render_chat_tokenize(text: str, spans: Iterable[TextSpan]) -> bytes:
    """Render the body of `/chat_tokenize`: the tokens and the text after the chat template."""
    return to_json({"tokenize_response": _spans(spans), "templated_text": text})


def render_info(
    model: ModelInfo,
    *,
    version: Version,
    limits: RequestLimits,
    kv_cache_tokens: int,
    max_concurrent_requests: int,
    server_version: str,
) -> bytes:
    """Render the body of `/info`."""
    common: dict[str, object] = {
        "max_concurrent_requests": max_concurrent_requests,
        "max_best_of": limits.max_best_of,
        "max_stop_sequences": limits.max_stop_sequences,
    }
    pipeline = "text2text-generation" if model.is_encoder_decoder else "text-generation"
    about_model = {"model_id": model.name, "model_sha": model.revision}
    about_server = {"version": server_version, "sha": None, "docker_label": None, "headrace": _own_facts(model)}
    if version == "3":
        return to_json(
            {
                **about_model,
                "model_pipeline_tag": pipeline,
                **common,
                "max_input_tokens": model.max_prompt_tokens,
                "max_total_tokens": model.max_model_len,
                "validation_workers": 1,
                "max_client_batch_size": MAX_CHOICES,
                "router": "headrace",
                **about_server,
            }
        )
    return to_json(
        {
            **about_model,
            "model_dtype": _DTYPES.get(model.dtype, model.dtype),
            "model_device_type": model.device.split()[0],
            "model_pipeline_tag": pipeline,
            **common,
            "max_input_length": model.max_prompt_tokens,
            "max_total_tokens": model.max_model_len,
            "waiting_served_ratio": 1.2,
            "max_batch_total_tokens": kv_cache_tokens,
            "max_waiting_tokens": 20,
            "validation_workers": 1,
            **about_server,
        }
    )


def _own_facts(model: ModelInfo) -> dict[str, object]:
    """Return the fields that TGI's `/info` does not have; the chat page reads its defaults from them."""
    return {
        "backend": model.backend,
        "backend_reason": model.backend_reason,
        "is_batch_invariant": model.is_batch_invariant,
        "dtype": model.dtype,
        "kv_dtype": model.kv_dtype,
        "format_reason": model.format_reason,
        "rope": model.rope,
        "has_chat_template": model.has_chat_template,
        "sampling_defaults": {**model.sampling_defaults.values(), "source": model.sampling_defaults.source},
        "recommended_sampling": asdict(model.recommended),
    }


def _spans(spans: Iterable[TextSpan]) -> list[dict[str, object]]:
    return [{"id": span.id, "text": span.text, "start": span.start, "stop": span.stop} for span in spans]
