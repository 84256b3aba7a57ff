"""Print each weight format's divergence from the float32 reference, for any family, and its size."""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measure import LIMITS, _chunk, native_runner

from headrace.models.loading import load_model
from headrace.models.model import Model
from headrace.runner.reference import ReferenceRunner
from headrace.runner.step import Float32

TEXT = Path(__file__).parents[2] / "LICENSE"
FORMATS = ("bf16", "w8a16", "w8a8", "w4a16", "w4a8")


@dataclass(frozen=True)
class Divergence:
    """One format against the numpy reference in float32 with the same weights."""

    dtype: str
    kl_nats: float
    same_token_percent: float
    perplexity: float
    weights_bytes: int
    share_of_file: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="alias, folder or GGUF file")
    parser.add_argument("--tokens", type=int, default=256, help="of the text, at most 256")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--isa", help="kernels to use; by default the best that this CPU can run")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    tokens = model.tokenizer.encode(TEXT.read_text())[: arguments.tokens]
    reference = log_probabilities(ReferenceRunner(model.spec, model.weights, LIMITS).logits(_chunk(tokens, 0)))
    print(f"reference: perplexity {perplexity(reference, tokens):.3f} over {len(tokens)} tokens")
    for dtype in arguments.formats:
        print(json.dumps(asdict(measure(model, dtype, tokens, reference, arguments.isa))), flush=True)


def measure(model: Model, dtype: str, tokens: list[int], reference: np.ndarray, isa: str | None) -> Divergence:
    with tempfile.TemporaryDirectory() as cache_dir:
        runner = native_runner(model, dtype, "bf16", isa=isa, cache_dir=Path(cache_dir))
        ours = log_probabilities(runner.logits(_chunk(tokens, 0)))
        runner.close()
    file_bytes = sum(path.stat().st_size for path in weight_files(model.path))
    return Divergence(
        dtype=dtype,
        kl_nats=float((np.exp(reference) * (reference - ours)).sum(axis=1).mean()),
        same_token_percent=100 * float((ours.argmax(axis=1) == reference.argmax(axis=1)).mean()),
        perplexity=perplexity(ours, tokens),
        weights_bytes=runner.info.weights_bytes,
        share_of_file=runner.info.weights_bytes / file_bytes,
    )


def log_probabilities(logits: Float32) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def perplexity(log_probs: np.ndarray, tokens: list[int]) -> float:
    return float(np.exp(-log_probs[np.arange(len(tokens) - 1), tokens[1:]].mean()))


def weight_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


if __name__ == "__main__":
    main()
