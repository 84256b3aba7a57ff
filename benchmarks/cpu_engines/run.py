"""
Compare Headrace with its peers on this CPU: install the peers, measure every cell, write the result.

    python -m benchmarks.cpu_engines.run
    python -m benchmarks.cpu_engines.run --engines headrace,llamacpp --cells n1,n8 --runs 5 --output /tmp/quick

See README.md for the method.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cpu_engines.cells import CELLS, START
from benchmarks.cpu_engines.engines import OURS, ROWS
from benchmarks.cpu_engines.limits import Shape
from benchmarks.cpu_engines.measure import Contest, Measured, Place, Plan
from benchmarks.cpu_engines.report import Hardware, write_result
from benchmarks.harness.machine import cpu_flags, measure_operations_per_s, physical_cores
from benchmarks.harness.results import RESULTS, choose, exit_on_sigterm, make_parser, names, tell
from benchmarks.peers.install import install_peers
from benchmarks.peers.manifest import DEFAULT_ROOT
from benchmarks.peers.peers import PEERS, choose_peers

from headrace.core.progress import no_progress
from headrace.inference.models.loading import load_model
from headrace.inference.models.sources import home_folder, locate


def main() -> None:
    options = parse_arguments()
    exit_on_sigterm()
    try:
        rows = choose("engine", ROWS, options.engines, lambda row: {row.family, row.name})
    except KeyError as error:
        sys.exit(str(error.args[0]))
    root = options.peers_root.expanduser()
    source = locate(options.model, revision=None, home=home_folder(os.environ), progress=no_progress)
    families = {row.family for row in rows} - {OURS}
    peers = choose_peers(families) if families else ()
    manifest, failures = install_peers(peers, root, source.path, model_name=source.name)
    for failure in failures:
        tell(failure)
    place = Place(manifest=manifest, threads=options.threads or physical_cores(), logs=root / "logs")
    cells = tuple(cell for cell in CELLS if cell.name in options.cells)
    starts = options.starts if START in options.cells else 1
    plan = Plan(cells=cells, runs=options.runs, starts=starts, seed=options.seed)
    hardware = measure_hardware(options.model)

    def save(measured: Sequence[Measured]) -> str:
        return write_result(measured, plan, place, hardware, options.output)

    with Contest(rows, place, plan, tell=make_teller(), save=save) as contest:
        contest.run()
        print(save(contest.measured))


def measure_hardware(model: str) -> Hardware:
    """Return the inputs of the limits: the model's sizes, and this CPU's peak of multiplications."""
    spec = load_model(model).spec
    attention = spec.hidden_size * spec.head_dim * (2 * spec.num_heads + 2 * spec.num_kv_heads)
    shape = Shape(
        layer_weights=spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size),
        head_weights=spec.vocab_size * spec.hidden_size,
        kv_values_per_token=2 * spec.num_layers * spec.num_kv_heads * spec.head_dim,
    )
    return Hardware(shape=shape, operations_per_s=measure_operations_per_s(cpu_flags()))


def make_teller() -> Callable[[str], None]:
    """Return a function that prints a line with the elapsed time."""
    started_s = time.perf_counter()
    return lambda text: tell(f"[{time.perf_counter() - started_s:4.0f} s] {text}")


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    families = ", ".join((OURS, *(peer.name for peer in PEERS)))
    parser.add_argument(
        "--engines", type=names, default=(), help=f"families ({families}) or rows by name, separated by commas"
    )
    known_cells = (START, *(cell.name for cell in CELLS))
    parser.add_argument("--cells", type=names, default=known_cells, help=f"of {', '.join(known_cells)}")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each cell")
    parser.add_argument("--starts", type=int, default=3, help="fresh processes for the start to the first token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="default: physical cores")
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or an alias of one")
    parser.add_argument("--peers-root", type=Path, default=DEFAULT_ROOT, help="where the peers are installed")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "cpu-engines", help="path of the results, without its ending"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
