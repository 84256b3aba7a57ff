"""Pipelines of encoder-decoder models, which were removed in transformers 5."""

from collections.abc import Callable
from typing import Any

_KEYS = {
    "text2text-generation": "generated_text",
    "summarization": "summary_text",
    "translation": "translation_text",
}


def key_of(task: str) -> str | None:
    """Return the name of the text in a result; None for a task of another kind."""
    return _KEYS.get("translation" if task.startswith("translation_") else task)


def load(task: str, model_dir: str, device: int | None, *, trusts_code: bool) -> Callable[..., Any]:
    """Return a function that answers as the pipelines of version 4 did."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trusts_code)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_dir, trust_remote_code=trusts_code)
    model.to("cpu" if device is None else f"cuda:{device}").eval()
    specific = dict((getattr(model.config, "task_specific_params", None) or {}).get(task) or {})
    prefix = specific.pop("prefix", getattr(model.config, "prefix", None) or "")
    key = key_of(task)
    languages = _languages(task)

    def answer(inputs: Any, **parameters: Any) -> Any:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        options = languages | specific | parameters
        results = [_generate(model, tokenizer, prefix + text, dict(options)) for text in texts]
        named = [[{key: text} for text in result] for result in results]
        if isinstance(inputs, str):
            return named[0]
        return [result[0] for result in named] if all(len(result) == 1 for result in named) else named

    return answer


def _languages(task: str) -> dict[str, str]:
    """Return the languages that `translation_en_to_fr` names."""
    parts = task.split("_")
    is_pair = len(parts) == 4 and parts[0] == "translation" and parts[2] == "to"
    return {"src_lang": parts[1], "tgt_lang": parts[3]} if is_pair else {}


def _generate(model: Any, tokenizer: Any, text: str, options: dict[str, Any]) -> list[str]:
    import torch

    if options.pop("return_tensors", False):
        raise ValueError("return_tensors is true; expected text to be returned. Remove the parameter.")
    options.pop("return_text", None)
    truncation = options.pop("truncation", False)
    cleans = options.pop("clean_up_tokenization_spaces", False)
    languages = {name: options.pop(name) for name in ("src_lang", "tgt_lang") if name in options}
    if languages and hasattr(tokenizer, "_build_translation_inputs"):
        encoded = tokenizer._build_translation_inputs(  # noqa: SLF001 - as the pipeline of version 4
            text, return_tensors="pt", truncation=truncation, **languages
        )
    else:
        encoded = tokenizer(text, return_tensors="pt", truncation=truncation)
    arguments = {name: value for name, value in encoded.items() if name != "token_type_ids"}
    on_device = {name: value.to(model.device) if torch.is_tensor(value) else value for name, value in arguments.items()}
    with torch.no_grad():
        output = model.generate(**on_device, **options)
    decoded: list[str] = tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=cleans)
    return decoded
