"""
Pipelines of transformers as the Hugging Face images choose them: by `HF_TASK`, or by the model's architecture.

Two kinds were removed in transformers 5: encoder-decoder models, and extractive question answering. The answer to a
question is the span of the context with the largest product of the probabilities of its start and its end. A context
longer than the network's input is read in windows that overlap. Source: `QuestionAnsweringPipeline` of transformers 4.
"""

import json
import logging
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace_handler.contract import LoadFailed

_KEYS = {
    "text2text-generation": "generated_text",
    "summarization": "summary_text",
    "translation": "translation_text",
}
QUESTION_ANSWERING = "question-answering"
_MAX_TOKENS = 384
"""Tokens of a window, as in version 4."""
_OVERLAP_TOKENS = 128
_BATCH_SIZE = 8
"""Windows that the network reads at once: all windows of a long context may not fit into memory."""


def seq2seq_key(task: str) -> str | None:
    """Return the name of the text in a result; None for a task of another kind."""
    return _KEYS.get("translation" if task.startswith("translation_") else task)


def load_seq2seq(task: str, model_dir: str, device: int | None, *, trusts_code: bool) -> Callable[..., Any]:
    """Return a function that answers as the pipelines of version 4 did."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trusts_code)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_dir, trust_remote_code=trusts_code)
    model.to("cpu" if device is None else f"cuda:{device}").eval()
    specific = dict((getattr(model.config, "task_specific_params", None) or {}).get(task) or {})
    prefix = specific.pop("prefix", getattr(model.config, "prefix", None) or "")
    key = seq2seq_key(task)
    parts = task.split("_")  # such as `translation_en_to_fr`
    is_pair = len(parts) == 4 and parts[0] == "translation" and parts[2] == "to"
    languages = {"src_lang": parts[1], "tgt_lang": parts[3]} if is_pair else {}

    def answer(inputs: Any, **parameters: Any) -> Any:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        options = languages | specific | parameters
        results = [_generate(model, tokenizer, prefix + text, dict(options)) for text in texts]
        named = [[{key: text} for text in result] for result in results]
        if isinstance(inputs, str):
            return named[0]
        return [result[0] for result in named] if all(len(result) == 1 for result in named) else named

    return answer


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


class _Span(NamedTuple):
    """A candidate for the answer: its probability and its characters in the context."""

    score: float
    start: int
    end: int


@dataclass(frozen=True)
class _Options:
    """The parameters of a request, as in version 4."""

    top_k: int = 1
    max_answer_len: int = 15
    max_seq_len: int | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        for name in ("top_k", "max_answer_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")


def load_question_answering(model_dir: str, device: int | None, *, trusts_code: bool) -> Callable[..., Any]:
    """
    Return a function that answers as the pipeline of version 4 did.

    Raises `ValueError`: the model's tokenizer cannot map its tokens to characters.
    """
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trusts_code)
    if not tokenizer.is_fast:
        raise ValueError(
            f"HF_TASK is {QUESTION_ANSWERING}, which needs a fast tokenizer. Add tokenizer.json to the model."
        )
    model = AutoModelForQuestionAnswering.from_pretrained(model_dir, trust_remote_code=trusts_code)
    model.to("cpu" if device is None else f"cuda:{device}").eval()

    def answer(inputs: Any = None, *, question: Any = None, context: Any = None, **parameters: Any) -> Any:
        options = _Options(**parameters)
        results = [_answers(model, tokenizer, *pair, options) for pair in _pairs(inputs, question, context)]
        return results[0] if len(results) == 1 else results

    return answer


def _pairs(inputs: Any, question: Any, context: Any) -> Iterator[tuple[str, str]]:
    """
    Yield question and context of each input.

    Raises:
        TypeError: an input is no object.
        ValueError: one of them is missing or empty.
    """
    if inputs is not None:
        for item in inputs if isinstance(inputs, list) else [inputs]:
            if not isinstance(item, dict):
                raise TypeError(f"An input is {item!r}; expected an object with question and context.")
            yield from _pairs(None, item.get("question"), item.get("context"))
        return
    questions = question if isinstance(question, list) else [question]
    contexts = context if isinstance(context, list) else [context] * len(questions)
    if len(questions) != len(contexts):
        raise ValueError(f"There are {len(questions)} questions and {len(contexts)} contexts; expected as many.")
    for asked, text in zip(questions, contexts, strict=True):
        for name, value in (("question", asked), ("context", text)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"`{name}` is {value!r}; expected text that is not empty.")
        yield asked, text


def _answers(model: Any, tokenizer: Any, question: str, context: str, options: _Options) -> Any:
    """Return the best answer, or a list of the `top_k` best ones."""
    length = min(options.max_seq_len or _MAX_TOKENS, tokenizer.model_max_length)
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=length,
        stride=min(length // 2, _OVERLAP_TOKENS) if options.doc_stride is None else options.doc_stride,
        return_overflowing_tokens=True,
        padding=True,
        return_tensors="pt",
    )
    windows.pop("overflow_to_sample_mapping", None)
    spans, impossible = _spans(model, windows, options)
    if options.handle_impossible_answer:
        spans.append(_Span(impossible, 0, 0))
    best = sorted(spans, reverse=True)[: options.top_k]
    results = [{"score": s.score, "start": s.start, "end": s.end, "answer": context[s.start : s.end]} for s in best]
    return results[0] if options.top_k == 1 and results else results


def _spans(model: Any, windows: Any, options: _Options) -> tuple[list[_Span], float]:
    """Return the best spans of all windows, and the lowest probability of a window that it has no answer."""
    import torch

    spans: dict[tuple[int, int], _Span] = {}
    impossible = 1.0
    for number, (starts, ends) in enumerate(_logits(model, windows)):
        window = windows.encodings[number]
        in_context = torch.tensor([part == 1 for part in windows.sequence_ids(number)])
        first, last = _probabilities(starts, in_context), _probabilities(ends, in_context)
        impossible = min(impossible, float(first[0] * last[0]))
        first[0] = last[0] = 0.0
        products = torch.triu(first[:, None] * last[None, :]).tril(options.max_answer_len - 1)
        scores, places = products.flatten().topk(min(options.top_k, products.numel()))
        for score, place in zip(scores.tolist(), places.tolist(), strict=True):
            start, end = divmod(place, len(last))
            found = _Span(score, *_characters(window, start, end, by_words=options.align_to_words))
            known = spans.get(found[1:])
            if score > 0.0 and (known is None or known.score < score):
                spans[found[1:]] = found
    return list(spans.values()), impossible


def _logits(model: Any, windows: Any) -> Iterator[tuple[Any, Any]]:
    import torch

    for begin in range(0, len(windows.encodings), _BATCH_SIZE):
        batch = {name: rows[begin : begin + _BATCH_SIZE].to(model.device) for name, rows in windows.items()}
        with torch.no_grad():
            output = model(**batch)
        yield from zip(output.start_logits.cpu(), output.end_logits.cpu(), strict=True)


def _characters(window: Any, first: int, last: int, *, by_words: bool) -> tuple[int, int]:
    """Return the characters of the tokens `first` to `last`, up to the ends of their words."""
    words = (window.token_to_word(first), window.token_to_word(last)) if by_words else (None, None)
    if None in words:
        return window.offsets[first][0], window.offsets[last][1]
    return window.word_to_chars(words[0], 1)[0], window.word_to_chars(words[1], 1)[1]


def _probabilities(logits: Any, in_context: Any) -> Any:
    """Return the probabilities of the tokens of the context, and of the first token, which stands for no answer."""
    allowed = in_context.clone()
    allowed[0] = True
    return logits.masked_fill(~allowed, float("-inf")).softmax(-1)


_log = logging.getLogger(__name__)

_TASKS_BY_ARCHITECTURE = {
    "TapasForQuestionAnswering": "table-question-answering",
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "GPT2LMHeadModel": "text-generation",
    "T5WithLMHeadModel": "text2text-generation",
}
_OTHER_FRAMEWORKS = ["*onnx*", "*mlmodel", "*openvino*", "*.ckpt", "*tflite", "flax*", "rust*", "tf*", "*.tar.gz"]


def configured_task() -> str | None:
    return os.environ.get("HF_TASK") or None


def fetch_model(model_dir: str) -> str:
    """
    Return the folder of the model that `HF_MODEL_ID` names, or the endpoint's own.

    Raises `LoadFailed`: the model cannot be downloaded.
    """
    model_id = os.environ.get("HF_MODEL_ID")
    if not model_id:
        return model_dir
    if Path(model_id).is_dir():
        return model_id
    import huggingface_hub

    try:
        return huggingface_hub.snapshot_download(
            model_id,
            revision=os.environ.get("HF_MODEL_REVISION") or None,
            token=os.environ.get("HF_API_TOKEN") or os.environ.get("HF_TOKEN") or None,
            ignore_patterns=_OTHER_FRAMEWORKS,
        )
    except Exception as error:
        _log.exception("The model cannot be downloaded")
        advice = "Without the network name a folder, or set HF_HUB_OFFLINE=1 for a model in the Hub's cache."
        reason = str(error).rstrip(".")
        raise LoadFailed(500, f"HF_MODEL_ID is {model_id}, which cannot be downloaded: {reason}. {advice}") from error


def load(model_dir: str, device: int | None) -> Any:
    """
    Return the pipeline of the model.

    Raises:
        ValueError: neither `HF_TASK` nor the folder determines the task, or the task needs a package that is missing.
    """
    from transformers import pipeline
    from transformers.pipelines import SUPPORTED_TASKS

    task = configured_task() or _infer_task(Path(model_dir), sorted(SUPPORTED_TASKS))
    os.environ["HF_TASK"] = task  # as the toolkit does: user code and the CSV rules read it
    if task == "text-to-image":
        return _load_diffusers(model_dir)
    trusts_code = os.environ.get("HF_TRUST_REMOTE_CODE", "false").lower() in {"y", "yes", "t", "true", "on", "1"}
    if seq2seq_key(task) is not None and task not in SUPPORTED_TASKS:
        return load_seq2seq(task, model_dir, device, trusts_code=trusts_code)
    if task == QUESTION_ANSWERING and task not in SUPPORTED_TASKS:
        return load_question_answering(model_dir, device, trusts_code=trusts_code)
    _check_supported(task, SUPPORTED_TASKS)
    return pipeline(
        task=task,  # type: ignore[call-overload]
        model=model_dir,
        device=-1 if device is None else device,
        trust_remote_code=trusts_code,
    )


def _check_supported(task: str, supported: Collection[str]) -> None:
    """
    Refuse a task that transformers does not have; its own error is a KeyError.

    Raises `ValueError`: the task is unknown.
    """
    aliases = {"sentiment-analysis", "ner", "vqa", "text-to-speech"}
    if task not in supported and task not in aliases and not task.startswith("translation"):
        from transformers import __version__

        raise ValueError(
            f"HF_TASK is {task}, which transformers {__version__} has no pipeline for; expected one of "
            f"{', '.join(sorted(supported))}. Or name another version of transformers in requirements.txt."
        )


def _infer_task(model_dir: Path, supported: list[str]) -> str:
    config = model_dir / "config.json"
    if config.is_file():
        return infer_task_of_architecture((json.loads(config.read_text()).get("architectures") or ["None"])[0])
    if (model_dir / "model_index.json").is_file():
        return "text-to-image"
    raise ValueError(f"You need to define one of the following {supported} or text-to-image as env 'HF_TASK'.")


def infer_task_of_architecture(architecture: str) -> str:
    """Return the task that the end of an architecture's name implies. Raises `ValueError`: it implies none."""
    task = None
    for ending, named in _TASKS_BY_ARCHITECTURE.items():
        # The last one counts, as in the toolkit; Tapas is asked with tables all the same.
        if architecture.endswith(ending) and task != "table-question-answering":
            task = named
    if task is None:
        raise ValueError(
            f"Task couldn't be inferenced from {architecture}."
            f"Inference Toolkit can only inference tasks from architectures ending with {list(_TASKS_BY_ARCHITECTURE)}."
            "Use env `HF_TASK` to define your task."
        )
    return task


def _load_diffusers(model_dir: str) -> Any:
    try:
        from diffusers import AutoPipelineForText2Image
    except ImportError as error:
        raise ValueError("The task text-to-image needs the package diffusers. Add it to requirements.txt.") from error
    images = AutoPipelineForText2Image.from_pretrained(model_dir)

    def generate(prompt: Any, **parameters: Any) -> Any:
        num_images = parameters.pop("num_images_per_prompt", 1)
        if num_images != 1:
            _log.warning("num_images_per_prompt is %s; one image is generated", num_images)
        return images(prompt, num_images_per_prompt=1, **parameters).images[0]

    return generate
