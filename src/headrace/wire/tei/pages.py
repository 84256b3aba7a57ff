"""TEI's `/info`. Source: text-embeddings-inference `router/src/lib.rs` (Info, ModelType)."""

from headrace.core.generation import ModelInfo, PoolingInfo
from headrace.wire.framing import to_json
from headrace.wire.pooled import MAX_INPUTS

_DTYPES = {"bf16": "bfloat16"}


def render_info(model: ModelInfo, info: PoolingInfo, *, max_concurrent_requests: int, server_version: str) -> bytes:
    """Render the body of `/info`."""
    return to_json(
        {
            "model_id": model.name,
            "model_sha": model.revision,
            "model_dtype": _DTYPES.get(model.dtype, model.dtype),
            "model_type": _model_type(info),
            "max_concurrent_requests": max_concurrent_requests,
            "max_input_length": info.max_tokens,
            "max_batch_tokens": model.max_batch_tokens,
            "max_batch_requests": model.max_num_seqs,
            "max_client_batch_size": MAX_INPUTS,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": server_version,
            "sha": None,
            "docker_label": None,
        }
    )


def _model_type(info: PoolingInfo) -> dict[str, object]:
    if not info.labels:
        return {"embedding": {"pooling": {"last": "last_token"}.get(info.method, info.method)}}
    labels = {
        "id2label": {str(index): label for index, label in enumerate(info.labels)},
        "label2id": {label: index for index, label in enumerate(info.labels)},
    }
    return {"reranker": labels} if len(info.labels) == 1 else {"classifier": labels}
