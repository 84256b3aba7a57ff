"""Print each format's divergence from the float32 reference, for any family, and its size."""

import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headrace.inference.models.loading import load_model
from headrace.inference.models.model import Model
from headrace.inference.runner.native import NativeRunner
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.step import Float32

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path

from benchmarks.fidelity.measure import CHUNK_TOKENS, CONTEXT_TOKENS, LIMITS, chunk_step, native_runner
from benchmarks.harness.results import make_parser, write_result

TEXT = Path(__file__).parents[2] / "LICENSE"
FORMATS = ("bf16/bf16", "w8a16/bf16", "w8a8/bf16", "w8a8/int8", "w4a16/bf16", "w4a16/int8", "w4a8/bf16", "w4a8/int8")


@dataclass(frozen=True)
class Divergence:
    """One format of weights and KV cache against the numpy reference in float32 with the same weights."""

    format: str
    kl_nats: float
    same_token_percent: float
    perplexity: float
    perplexity_change_percent: float
    weights_bytes: int
    share_of_file: float


@dataclass
class Sums:
    """The predictions of one runner, added up over the text."""

    loss: float = 0.0
    divergence: float = 0.0
    num_same: int = 0

    def add(self, ours: np.ndarray, reference: np.ndarray, following: list[int]) -> None:
        """Add a chunk of log probabilities (T, V) and the tokens that followed, of which the last may be missing."""
        self.loss -= float(ours[np.arange(len(following)), following].sum())
        self.divergence += float((np.exp(reference) * (reference - ours)).sum())
        self.num_same += int((ours.argmax(axis=1) == reference.argmax(axis=1)).sum())

    def perplexity(self, num_tokens: int) -> float:
        return float(np.exp(self.loss / (num_tokens - 1)))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="alias, folder or GGUF file")
    parser.add_argument("--tokens", type=int, default=1024, help=f"of the text, at most {CONTEXT_TOKENS}")
    parser.add_argument("--formats", nargs="+", default=FORMATS, metavar="WEIGHTS/KV", help="such as w4a16/bf16")
    parser.add_argument("--isa", help="kernels to use; by default the best that this CPU can run")
    parser.add_argument("--output", type=Path, help="JSON file to write, too")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    tokens = model.tokenizer.encode(TEXT.read_text())[: min(arguments.tokens, CONTEXT_TOKENS)]
    with ExitStack() as stack:
        cache_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runners = {
            name: native_runner(model, *name.split("/"), isa=arguments.isa, cache_dir=cache_dir)
            for name in arguments.formats
        }
        reference, results = compare(model, tokens, runners)
    print(f"reference: perplexity {reference:.3f} over {len(tokens)} tokens")
    lines = [asdict(result) for result in results]
    for line in lines:
        print(json.dumps(line))
    if arguments.output:
        report = {"model": model.name, "text_tokens": len(tokens), "reference_perplexity": reference, "results": lines}
        write_result(arguments.output, report)


def compare(model: Model, tokens: list[int], runners: dict[str, NativeRunner]) -> tuple[float, list[Divergence]]:
    """Run the text through all runners, chunk by chunk: the logits of a large vocabulary fill the memory."""
    reference_runner = ReferenceRunner(model.spec, model.weights, LIMITS)
    reference_sums, sums = Sums(), {name: Sums() for name in runners}
    for start in range(0, len(tokens), CHUNK_TOKENS):
        step, following = chunk_step(tokens, start), tokens[start + 1 : start + CHUNK_TOKENS + 1]
        reference = log_probabilities(reference_runner.logits(step))
        reference_sums.add(reference, reference, following)
        for name, runner in runners.items():
            sums[name].add(log_probabilities(runner.logits(step)), reference, following)
    expected = reference_sums.perplexity(len(tokens))
    files = sorted(model.path.glob("*.safetensors")) if model.path.is_dir() else [model.path]
    file_bytes = sum(path.stat().st_size for path in files)
    results = []
    for name, runner in runners.items():
        perplexity = sums[name].perplexity(len(tokens))
        results.append(
            Divergence(
                format=name,
                kl_nats=sums[name].divergence / len(tokens),
                same_token_percent=100 * sums[name].num_same / len(tokens),
                perplexity=perplexity,
                perplexity_change_percent=100 * (perplexity / expected - 1),
                weights_bytes=runner.info.weights_bytes,
                share_of_file=runner.info.weights_bytes / file_bytes,
            )
        )
    return expected, results


def log_probabilities(logits: Float32) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


if __name__ == "__main__":
    main()
