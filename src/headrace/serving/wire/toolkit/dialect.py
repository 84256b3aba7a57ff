"""
The dialect `hf-toolkit`, whose pipeline follows from the model that is served, and the pipeline `text-generation`.

`text-generation` takes a prompt, several, or chats, each with the generated texts. Parameters are those of the pipeline
and of `generate` in transformers 4, and TGI's, whose `details` and `stream` the images' clients use with Headrace. As
in `generate`, only `do_sample` samples.

Errors are those of the toolkit's Multi Model Server: an exception of a pipeline is a 400, whatever its kind.
Source: transformers `pipelines/text_generation.py` and `generation/configuration_utils.py`;
sagemaker-huggingface-inference-toolkit `handler_service.py` (`handle`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import MAX_CHOICES, ErrorReply, ParsedRequest, Reply, RequestContext
from headrace.serving.wire.fields import field_table, struct_fields
from headrace.serving.wire.framing import raw_fields, refusing_deep_nesting, to_json
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.pooled import WholeReply
from headrace.serving.wire.tgi.dialect import GenerateParameters, Tgi, sampling_params
from headrace.serving.wire.tgi.reply import TgiReply
from headrace.serving.wire.toolkit import encoders
from headrace.serving.wire.toolkit.jumpstart import parse_embedding
from headrace.serving.wire.torchserve.dialect import render_error as render_java_error

_TGI = Tgi(version="1.0")
_DEFAULT_TOP_K = 50
"""Of `generate` in transformers 4."""
Message = dict[str, object]
Prompt = str | list[Message]
T = TypeVar("T")


class Parameters(GenerateParameters, kw_only=True):
    """The parameters of the pipeline that TGI does not have, beside TGI's."""

    num_return_sequences: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_p: float | None = None
    stop_sequence: str | list[str] | None = None
    stop_strings: str | list[str] | None = None
    eos_token_id: int | list[int] | None = None
    continue_final_message: bool | None = None


_inputs_decoder = msgspec.json.Decoder(str | list[str | Message | list[Message]])
_parameters_decoder = msgspec.json.Decoder(Parameters)
_stream_decoder = msgspec.json.Decoder(bool | None)
PARAMETER_FIELDS = field_table("pipeline-generation", Parameters)
assert struct_fields(GenerateParameters) <= PARAMETER_FIELDS.applied


def parse_generation(body: bytes, context: RequestContext) -> ParsedRequest:
    """Parse a body of the pipeline. Raises `InvalidRequest`: the inputs or the parameters are not as expected."""
    raw_inputs, raw_parameters, ignored = encoders.split_body(body, PARAMETER_FIELDS)
    stream = bool(encoders.decode_part("stream", bytes(raw_fields(body).get("stream", b"null")), _stream_decoder))
    prompts, is_list = _prompts(encoders.decode_part("inputs", raw_inputs, _inputs_decoder))
    parameters = encoders.decode_part("parameters", raw_parameters, _parameters_decoder)
    sampling = _sampling(parameters, context, stream=stream)
    if len(prompts) * sampling.n > MAX_CHOICES:
        raise InvalidRequest(f"The request asks for more than {MAX_CHOICES} texts. Send fewer inputs.", param="inputs")
    requests = tuple(
        GenerationRequest(
            request_id=context.request_id if len(prompts) == 1 else f"{context.request_id}-{number}",
            prompt=_engine_prompt(prompt, parameters, context),
            sampling=sampling,
            truncate_prompt_tokens=parameters.truncate,
            adapter=parameters.adapter_id or None,
        )
        for number, prompt in enumerate(prompts)
    )
    reply = _reply(prompts, parameters, is_list=is_list, stream=stream, num_texts=sampling.n)
    return ParsedRequest(requests=requests, stream=stream, reply=reply, ignored=ignored)


def _prompts(inputs: str | list[str | Message | list[Message]]) -> tuple[list[Prompt], bool]:
    """Return the prompts, and whether the client sent a list of them: a list of messages is one prompt."""
    if isinstance(inputs, str):
        prompts: list[Prompt] = [inputs]
    elif inputs and all(isinstance(item, dict) for item in inputs):
        prompts = [[item for item in inputs if isinstance(item, dict)]]
    else:
        prompts = [item for item in inputs if not isinstance(item, dict)]
        if len(prompts) != len(inputs):
            raise InvalidRequest("`inputs` mixes texts and messages; expected one kind.", param="inputs")
    if not prompts or not all(prompts):
        raise InvalidRequest("`inputs` cannot be empty", param="inputs")
    return prompts, isinstance(inputs, list) and not isinstance(inputs[0], dict)


def _engine_prompt(prompt: Prompt, parameters: Parameters, context: RequestContext) -> str | ChatPrompt:
    if isinstance(prompt, str):
        return prompt
    continues = _continues(prompt, parameters)
    body = {"messages": prompt, "continue_final_message": continues, "add_generation_prompt": not continues}
    (request,) = OpenAIChat().parse(msgspec.json.encode(body), context).requests
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def _continues(messages: list[Message], parameters: Parameters) -> bool:
    given = parameters.continue_final_message
    return messages[-1].get("role") == "assistant" if given is None else given


def _sampling(parameters: Parameters, context: RequestContext, *, stream: bool) -> SamplingParams:
    num_texts = 1 if parameters.num_return_sequences is None else parameters.num_return_sequences
    if num_texts > 1 and not parameters.do_sample:
        raise InvalidRequest(
            "Greedy methods without beam search do not support `num_return_sequences` different than 1 "
            f"(got {num_texts}). Set `do_sample`.",
            param="num_return_sequences",
        )
    sampling = sampling_params(
        _as_tgi(parameters),
        version="1.0",
        stream=stream,
        limits=context.limits,
        max_input_tokens=context.model.max_prompt_tokens,
    )
    by_total = parameters.max_length is not None and parameters.max_new_tokens is None
    return replace(
        sampling,
        n=sampling.n if num_texts == 1 else num_texts,
        max_new_tokens=None if by_total else sampling.max_new_tokens,
        max_total_tokens=parameters.max_length if by_total else None,
        min_new_tokens=parameters.min_new_tokens or 0,
        min_p=(parameters.min_p or 0.0) if parameters.do_sample else 0.0,
        stop=(*sampling.stop, *_listed(parameters.stop_sequence), *_listed(parameters.stop_strings)),
        stop_token_ids=tuple(_listed(parameters.eos_token_id)),
    )


def _as_tgi(parameters: Parameters) -> GenerateParameters:
    """Return the parameters with TGI's meaning: a value that is off is absent, and one without `do_sample` too."""
    if not parameters.do_sample:
        return msgspec.structs.replace(parameters, temperature=None, top_k=None, top_p=None, typical_p=None)
    top_k = _DEFAULT_TOP_K if parameters.top_k is None else parameters.top_k or None
    off = {name: None for name in ("top_p", "typical_p") if getattr(parameters, name) == 1.0}
    return msgspec.structs.replace(parameters, top_k=top_k, **off)


def _listed(value: T | list[T] | None) -> list[T]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _reply(prompts: list[Prompt], parameters: Parameters, *, is_list: bool, stream: bool, num_texts: int) -> Reply:
    (first, *others) = prompts
    is_tgi = stream or bool(parameters.details or parameters.decoder_input_details or (parameters.best_of or 1) > 1)
    if isinstance(first, str) and not others and not is_list and (is_tgi or num_texts == 1):
        return TgiReply(_TGI.options(first, parameters, stream=stream))
    if is_tgi:
        raise InvalidRequest(
            "`stream`, `details` and `best_of` need one text in `inputs`, and no `num_return_sequences`. Send the "
            "inputs one by one.",
            param="inputs",
        )

    def render(answers: Sequence[Answer]) -> bytes:
        results = [
            [{"generated_text": _generated(prompt, choice.text, parameters)} for choice in answer.choices]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        return to_json(results if is_list else results[0])

    return WholeReply(render)


def _generated(prompt: Prompt, text: str, parameters: Parameters) -> object:
    """Return the value of `generated_text`, which the prompt precedes."""
    if parameters.return_full_text is False:
        return text
    if isinstance(prompt, str):
        return prompt + text
    if not _continues(prompt, parameters):
        return [*prompt, {"role": "assistant", "content": text}]
    *before, last = prompt
    return [*before, {**last, "content": f"{last.get('content') or ''}{text}"}]


_STATUS = 400


def render_error(error: HeadraceError) -> ErrorReply:
    if not isinstance(error, InvalidRequest) or error.http_status == 413:
        return render_java_error(error)
    body = to_json({"code": _STATUS, "type": "InternalServerException", "message": error.message})
    return ErrorReply(status=_STATUS, body=body, headers=())


PipelineTask = Literal["text-generation", "text-classification", "feature-extraction", "jumpstart-embedding"]
"""
The tasks of Headrace's engine; the others run in transformers (`headrace_handler.contracts.sagemaker`). The last one is
none of the toolkit's: JumpStart's embedding models run in its image with a schema of their own.
"""

_PARSERS = {
    "text-generation": parse_generation,
    "text-classification": encoders.parse_classification,
    "feature-extraction": encoders.parse_features,
    "jumpstart-embedding": parse_embedding,
}


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A pipeline of the Hugging Face Inference Toolkit for SageMaker."""

    task: PipelineTask = "text-generation"

    @property
    def name(self) -> str:
        return f"hf-toolkit-{self.task}"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        return _PARSERS[self.task](body, context)

    render_error = staticmethod(render_error)
