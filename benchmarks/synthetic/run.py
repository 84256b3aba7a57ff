"""
Time models of known shapes beside llama.cpp and ik_llama.cpp, on the same files, and what the hardware allows.

    python -m benchmarks.synthetic.run --llamacpp ~/llama.cpp/build/bin --ik-llamacpp ~/ik_llama.cpp/build/bin
    python -m benchmarks.synthetic.run --shapes qwen3-30b-a3b --turns 5 --chats ''

Run it from the repository's root, with nothing else running on the machine. Results are added to those of earlier runs
with other shapes after each shape, so it can be run in parts. See README.md.
"""

import json
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import results
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.turns import in_turns
from benchmarks.peers.manifest import DEFAULT_ROOT, read_manifest
from benchmarks.synthetic.chat import ChatTurn, launches, run_chats
from benchmarks.synthetic.make import gguf_shape, write_gguf
from benchmarks.synthetic.report import page
from benchmarks.synthetic.steps import Engine, PeerFailed, Turn, take_turn, version_of, work_of
from benchmarks.synthetic.today import GgufShape

LAYERS = {
    "smollm2-135m": 30, "llama-3.2-1b": 16, "llama-3.1-8b": 32, "qwen3-30b-a3b": 8, "mixtral-8x7b": 4,
    "lfm2-1.2b": 16, "qwen3.5-4b": 12, "qwen3.5-9b": 8, "qwen3.6-35b-a3b": 8, "gemma-4-e2b": 23,
    "gemma-4-26b-a4b": 6, "granite-4-h-tiny": 20, "glm-4.7-flash": 8,
}  # fmt: skip
"""Layers of the file, by model. Gemma 4 E2B: such that the last layer with keys of its own attends to everything."""
CHATS = {"lfm2-1.2b": 16, "qwen3.5-4b": 8}
"""Layers of the files of hybrids that hold a chat."""
LLAMACPP, IK_LLAMACPP = "llama.cpp", "ik_llama.cpp"


def tools_of(arguments: Namespace) -> dict[str, Path]:
    """Return the folders of the peers' programs, by peer."""
    installed = read_manifest(DEFAULT_ROOT.expanduser()).peers.get("llamacpp")
    found = {
        LLAMACPP: arguments.llamacpp or (Path(installed.tools) if installed and installed.tools else None),
        IK_LLAMACPP: arguments.ik_llamacpp,
    }
    return {name: tools.expanduser().resolve() for name, tools in found.items() if tools}


def engines_of(dtypes: list[str], tools: dict[str, Path], isa: str | None) -> list[Engine]:
    """Return the engines to compare: Headrace in each format, and the peers that are installed."""
    options = {LLAMACPP: ("-fa", "on"), IK_LLAMACPP: ("-fa", "on", "-rtr")}
    engines = [Engine(name=f"Headrace {dtype}", dtype=dtype, isa=isa) for dtype in dtypes]
    return engines + [Engine(name=name, tools=folder, options=options[name]) for name, folder in tools.items()]


@contextmanager
def model_file(name: str, layers: int, arguments: Namespace) -> Iterator[tuple[GgufShape, Path]]:
    """Yield a model and its file, which is made if it does not exist, and deleted afterwards."""
    whole = gguf_shape(name)
    shape = replace(whole, layers=min(layers, arguments.layers or layers))
    folder = arguments.folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{shape.layers}.gguf"
    if not path.exists():
        print(f"{name}: writing {path} …", flush=True)
        unfinished = path.with_suffix(".unfinished")
        write_gguf(shape, unfinished)
        unfinished.replace(path)
    try:
        yield shape, path
    finally:
        if not arguments.keep_files:
            path.unlink()
            shutil.rmtree(folder / "packed", ignore_errors=True)


def measure(name: str, engines: list[Engine], arguments: Namespace) -> dict[str, Any]:
    """Return the record of one model. A peer that does not run it is asked once, and its reason is kept."""
    refusals: dict[str, str] = {}
    records: list[dict[str, Any]] = []
    with model_file(name, LAYERS[name], arguments) as (shape, path):
        works = {engine.dtype: work_of(shape, path, engine.dtype) for engine in engines if not engine.tools}
        for number, engine in in_turns(engines, arguments.turns):
            if engine.name in refusals:
                continue
            began_s, work = time.perf_counter(), works[engine.dtype if not engine.tools else engines[0].dtype]
            try:
                turn = take_turn(engine, path, path.parent / "packed", work, tries=arguments.tries)
            except PeerFailed as error:
                refusals[engine.name] = str(error)
                print(f"{name}, {engine.name}: {error}", flush=True)
                continue
            records.append(asdict(turn) | ({} if engine.tools else {"token_bytes": work.all_bytes}))
            print(f"{name}, turn {number + 1}, {_line(turn)} ({time.perf_counter() - began_s:.0f} s)", flush=True)
    layers = {"layers": shape.layers, "of_layers": gguf_shape(name).layers}
    return layers | {"work": asdict(works[engines[0].dtype]), "turns": records, "refusals": refusals}


def _line(turn: Turn) -> str:
    speeds = ", ".join(f"{cell} {speed:.1f}" for cell, speed in turn.tokens_per_s.items())
    return f"{turn.engine}: {speeds} tokens/s"


def hold_chat(name: str, llama_server: Path, arguments: Namespace) -> dict[str, Any]:
    """Return the record of a chat with one model."""
    records: list[dict[str, Any]] = []
    with model_file(name, CHATS[name], arguments) as (shape, path):
        logs, packed = path.parent, path.parent / "packed"
        servers = launches(path, llama_server, dtype=arguments.dtypes[0], home=packed)
        turns = run_chats(
            servers, vocab=shape.vocab, num_turns=arguments.chat_turns, num_rounds=arguments.chat_rounds, logs=logs
        )
        for turn in turns:
            records.append(asdict(turn) | {"recomputed_tokens": turn.recomputed_tokens})
            print(f"{name}, {_chat_line(turn)}", flush=True)
    return {"layers": shape.layers, "of_layers": gguf_shape(name).layers, "turns": records}


def _chat_line(turn: ChatTurn) -> str:
    return (
        f"chat ({turn.history}), turn {turn.turn}, {turn.server}: {turn.ttft_s * 1e3:.0f} ms, "
        f"{turn.prompt_tokens} tokens, {turn.new_tokens} new, {turn.computed_tokens} computed"
    )


def make_arguments() -> Namespace:
    parser = results.make_parser(__doc__)
    parser.add_argument("--shapes", type=results.names, default=list(LAYERS), help="models to time, '': none")
    parser.add_argument("--chats", type=results.names, default=list(CHATS), help="models to chat with, '': none")
    parser.add_argument("--dtypes", type=results.names, default=["w4a8"], help="of Headrace; the first one chats")
    parser.add_argument(
        "--isa", help="instruction set of Headrace, with results of its own; build the peers for it, too"
    )
    parser.add_argument("--turns", type=int, default=3, help="of each engine with each model")
    parser.add_argument("--tries", type=int, default=2, help="runs of a turn while other programs disturb it")
    parser.add_argument("--layers", type=int, help="at most so many, for a trial")
    parser.add_argument("--chat-turns", type=int, default=10)
    parser.add_argument("--chat-rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=DEFAULT_ROOT / "synthetic", help="for the files")
    parser.add_argument("--keep-files", action="store_true", help="for another run")
    parser.add_argument("--llamacpp", type=Path, help="folder with its programs, else the installed peer")
    parser.add_argument("--ik-llamacpp", type=Path, help="folder with its programs, see README.md")
    parser.add_argument("--versions", type=json.loads, default={}, help="JSON by peer, where its programs do not know")
    parser.add_argument("--output", type=Path, default=results.RESULTS)
    return parser.parse_args()


def main() -> None:
    arguments = make_arguments()
    results.exit_on_sigterm()
    tools = tools_of(arguments)
    engines = engines_of(arguments.dtypes, tools, arguments.isa)
    file = arguments.output / f"synthetic{f'-{arguments.isa}' if arguments.isa else ''}.json"
    result = {"models": {}, "chats": {}} | (json.loads(file.read_text()) if file.exists() else {})
    result["machine"] = describe_machine()
    versions = {name: version_of(folder) for name, folder in tools.items()} | arguments.versions
    served = {name: version for name, version in versions.items() if name == LLAMACPP}
    facts = {
        kind: {"date": time.strftime("%Y-%m-%d"), "versions": known}
        for kind, known in (("models", versions), ("chats", served))
    }
    parts = [("models", name, partial(measure, name, engines, arguments)) for name in arguments.shapes]
    if LLAMACPP in tools:
        server = tools[LLAMACPP] / "llama-server"
        parts += [("chats", name, partial(hold_chat, name, server, arguments)) for name in arguments.chats]
    failed = 0
    for kind, name, run in parts:
        try:
            result[kind][name] = facts[kind] | run()
        except Exception as error:  # noqa: BLE001 - the other models are measured all the same
            failed += 1
            print(f"{name} ({kind}) failed: {error}", flush=True)
        results.write_result(file, result, page(result))
    raise SystemExit(min(failed, 1))


if __name__ == "__main__":
    main()
