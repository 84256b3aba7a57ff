"""
Compare the logits and the greedy tokens of small networks with those of llama.cpp on the same GGUF files.

    python -m benchmarks.agreement.run --llamacpp ~/llama.cpp --libraries ~/llama.cpp/build/bin

Run it from the repository's root. Needs torch, transformers and a C compiler. See README.md.
"""

import os
import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import transformers
from benchmarks.agreement.measure import GENERATED, Agreement, measured, page
from benchmarks.agreement.networks import Case, all_cases
from benchmarks.harness import results
from tests.inference.models.model_files import byte_level_tokenizer, gguf_vocabulary
from tests.inference.runner.native_models import LIMITS, load
from tests.inference.runner.states import new_sequences
from tests.inference.runner.steps import make_step
from tests.parity.checkpoints import TOKENS
from tests.parity.networks import NETWORKS
from tests.parity.references import load_architecture, logits_of, make_network
from tests.parity.test_gguf_twins import write_twin

from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.step import Float32

UNUSED = 5
"""Kind of a token of a GGUF vocabulary that no text has."""


def build(llamacpp: Path, libraries: Path, program: Path) -> None:
    include = [f"-I{llamacpp}/{folder}" for folder in ("include", "ggml/include")]
    links = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base"]
    source = str(Path(__file__).with_name("logits.c"))
    subprocess.run([os.environ.get("CC", "cc"), "-O1", *include, source, "-o", str(program), *links], check=True)


def vocabulary(size: int) -> dict[str, object]:
    values = gguf_vocabulary(byte_level_tokenizer(size))
    for key, other in (("tokens", [f"<unused{number}>" for number in range(size)]), ("token_type", [UNUSED] * size)):
        known = values[f"tokenizer.ggml.{key}"]
        assert isinstance(known, list)
        values[f"tokenizer.ggml.{key}"] = (known + other)[:size]
    return values


def compare(name: str, case: Case, program: Path, folder: Path) -> Agreement:
    row = Agreement(network=name, architecture=case.architecture, why=case.why)
    architecture, changes = NETWORKS[case.network]
    config = make_network(architecture, changes | case.config, folder / "model").files["config.json"]
    size = int(config.get("text_config", config)["vocab_size"])
    metadata = {key: value for key, value in case.metadata.items() if value is not None}
    file, _ = write_twin(folder, case.architecture, metadata, more=vocabulary(size))
    command = [str(program), str(file), str(len(TOKENS)), str(GENERATED)]
    ran = subprocess.run(command, input=np.array(TOKENS, np.int32).tobytes(), capture_output=True, check=False)
    if ran.returncode:
        return replace(row, failure=reason(ran.stderr.decode(errors="replace")))
    theirs = np.frombuffer(ran.stdout, np.float32).reshape(-1, size)
    tokens = [*TOKENS, *theirs[len(TOKENS) - 1 : -1].argmax(axis=1).tolist()]
    expected = logits_of(load_architecture(architecture, folder / "model"), tokens)
    opened = open_gguf(file)
    family, spec = read_gguf_spec(opened)
    reference, native = headrace_logits(spec, GgufWeights(opened, family, spec), tokens, folder)
    return measured(row, expected, theirs, reference, native)


def reason(log: str) -> str:
    """Return the error of llama.cpp without what was going on when it happened."""
    errors = [line for line in log.splitlines() if "error" in line or "ASSERT" in line] or [log]
    return errors[-1].rpartition("error loading model: ")[2]


def headrace_logits(spec: ModelSpec, weights: WeightSource, tokens: list[int], folder: Path) -> tuple[Float32, Float32]:
    """Return the logits after each token, of the reference and of native kernels."""
    limits = replace(LIMITS, max_context_tokens=len(tokens), num_state_slots=1 if spec.has_state else 0)
    states = new_sequences(len(tokens)) if spec.has_state else None
    step = make_step((tokens, 0, [7, 3, 11, 2]), states=states, all_rows=True)
    runner = load(spec, weights, folder / "packed", dtype="bf16", kv_dtype="bf16", limits=limits)
    return ReferenceRunner(spec, weights, limits).logits(step), runner.logits(step)


def main() -> None:
    parser = results.make_parser(__doc__)
    parser.add_argument("--llamacpp", type=Path, required=True, help="folder of its sources")
    parser.add_argument("--libraries", type=Path, required=True, help="folder with libllama.so")
    parser.add_argument("--networks", nargs="+", default=[], help="names; by default all")
    parser.add_argument("--output", type=Path, default=results.RESULTS / "agreement.json")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in all_cases().items() if name in (arguments.networks or all_cases())}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "logits"
        build(arguments.llamacpp, arguments.libraries, program)
        for name, case in chosen.items():
            with tempfile.TemporaryDirectory() as own:
                rows.append(compare(name, case, program, Path(own)))
            results.tell(str(rows[-1]))
    versions = {
        "transformers": transformers.__version__,
        "library": (arguments.libraries / "libllama.so").resolve().name,
    }
    description = ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    if arguments.networks:
        print(page(rows, description))
    else:
        stored = {**versions, "rows": [asdict(row) for row in rows]}
        results.write_result(arguments.output, stored, page(rows, description))


if __name__ == "__main__":
    main()
