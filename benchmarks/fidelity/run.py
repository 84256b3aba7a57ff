"""Print and save the quality loss of each weight format. See README.md."""

import platform
import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from headrace.core.generation import ChatPrompt
from headrace.inference.models.loading import load_model
from headrace.inference.models.model import Model

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path

from benchmarks.fidelity.measure import (
    Predictions,
    greedy_answer,
    native_runner,
    predict_native,
    predict_torch,
    torch_model,
)
from benchmarks.harness import results as files

TEXT = Path(__file__).parents[2] / "LICENSE"
WEIGHTS = ("bf16", "w8a16", "w8a8", "w4a16", "w4a8")
FORMATS = [(weights, kv_cache) for weights in WEIGHTS for kv_cache in ("bf16", "int8")]
QUESTIONS = [
    "What is the capital of France, and what is it known for?",
    "Explain photosynthesis to a ten-year-old.",
    "Write a Python function that reverses a string.",
    "List five uses for an old newspaper.",
    "Who wrote Hamlet, and what is it about?",
    "How does a water wheel turn flowing water into work?",
    "Give me a recipe for pancakes.",
    "What is the difference between a virus and a bacterium?",
    "Summarise the causes of the First World War.",
    "Write a short poem about the sea.",
    "How do I keep houseplants alive in winter?",
    "What does a compiler do?",
    "Tell me a story about a fox and a crow.",
    "Why is the sky blue?",
    "What should I pack for a week in the mountains?",
    "Translate 'good morning, how are you?' into Spanish and German.",
    "How does compound interest work? Give an example.",
    "Describe the life cycle of a butterfly.",
    "What are the rules of chess for a beginner?",
    "Write a polite email that asks for a day off.",
]


@dataclass(frozen=True)
class Result:
    """One format against `transformers` in bfloat16 with the same weights."""

    checkpoint: str
    dtype: str
    kv_dtype: str
    device: str
    perplexity: float
    perplexity_change_percent: float
    text_agreement_percent: float
    answer_agreement_percent: float


@dataclass(frozen=True)
class Reference:
    """The predictions of `transformers` along the text, and along its own answers."""

    text: list[int]
    on_text: Predictions
    answers: list[list[int]]
    """Prompt and answer, without the last token."""
    on_answers: list[Predictions]


def main() -> None:
    arguments = parse_arguments()
    model = load_model(arguments.model)
    reference = make_reference(model, arguments)
    if arguments.quantized is None:
        results = [measure(model, reference, *names, arguments) for names in FORMATS]
    else:
        candidates = [model, load_model(arguments.quantized)]
        pairs = [(candidate, names) for candidate in candidates for names in FORMATS if names[0] == "w8a8"]
        results = [measure(candidate, reference, *names, arguments) for candidate, names in pairs]
    print(table(reference, results))
    if arguments.output is not None:
        files.write_result(arguments.output, report(model, reference, results, arguments))


def parse_arguments() -> Namespace:
    parser = files.make_parser(__doc__)
    parser.add_argument("model", help="a Llama-like model: alias, folder or GGUF file")
    parser.add_argument("--quantized", help="its folder by `headrace quantize`: compare W8A8 without and with it")
    parser.add_argument("--text-tokens", type=int, default=2048)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--isa", help="kernels to use; by default the best that this CPU can run")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    return parser.parse_args()


def make_reference(model: Model, arguments: Namespace) -> Reference:
    network = torch_model(model.spec, model.weights, torch.bfloat16)
    text = model.tokenizer.encode(TEXT.read_text())[: arguments.text_tokens]
    answers = []
    for question in QUESTIONS:
        prompt = tokens_of(model, question)
        answers.append(prompt + greedy_answer(network, prompt, arguments.answer_tokens)[:-1])
    on_answers = [predict_torch(network, tokens) for tokens in answers]
    return Reference(text, predict_torch(network, text), answers, on_answers)


def tokens_of(model: Model, question: str) -> list[int]:
    if model.chat_template is None:
        return model.tokenizer.encode(question)
    prompt = ChatPrompt(messages=[{"role": "user", "content": question}])
    return model.tokenizer.encode(model.chat_template.render(prompt), add_special_tokens=False)


def measure(model: Model, reference: Reference, dtype: str, kv_dtype: str, arguments: Namespace) -> Result:
    with tempfile.TemporaryDirectory() as cache_dir:
        runner = native_runner(model, dtype, kv_dtype, isa=arguments.isa, cache_dir=Path(cache_dir))
        on_text = predict_native(runner, reference.text)
        agreeing = sum(
            (predict_native(runner, tokens).best == expected.best)[-arguments.answer_tokens :].sum()
            for tokens, expected in zip(reference.answers, reference.on_answers, strict=True)
        )
        runner.close()
    return Result(
        checkpoint=model.name,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=runner.info.device,
        perplexity=on_text.perplexity,
        perplexity_change_percent=100 * (on_text.perplexity / reference.on_text.perplexity - 1),
        text_agreement_percent=100 * on_text.agreement(reference.on_text),
        answer_agreement_percent=100 * float(agreeing) / (len(QUESTIONS) * arguments.answer_tokens),
    )


def table(reference: Reference, results: list[Result]) -> str:
    header = ("checkpoint", "weights", "KV", "perplexity", "change", "same token, text", "same token, answers")
    rows = (
        [
            *(r.checkpoint, r.dtype, r.kv_dtype, f"{r.perplexity:.3f}", f"{r.perplexity_change_percent:+.2f} %"),
            *(f"{r.text_agreement_percent:.1f} %", f"{r.answer_agreement_percent:.1f} %"),
        ]
        for r in results
    )
    about = f"Perplexity of transformers bf16: {reference.on_text.perplexity:.3f} over {len(reference.text)} tokens"
    return f"{about}\n\n{files.table(header, rows, text_columns=3)}"


def report(model: Model, reference: Reference, results: list[Result], arguments: Namespace) -> dict[str, object]:
    return {
        "model": model.name,
        "text_tokens": len(reference.text),
        "answer_tokens": arguments.answer_tokens,
        "num_answers": len(QUESTIONS),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "reference_perplexity": reference.on_text.perplexity,
        "results": [asdict(result) for result in results],
    }


if __name__ == "__main__":
    main()
