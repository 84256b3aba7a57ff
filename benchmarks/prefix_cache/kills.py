"""
Kill a server at random moments while it writes its prefix cache, and compare every answer with one without a cache.

    python -m benchmarks.prefix_cache.kills smollm2 --kills 100

Each round starts a server on the folder that the kills before it left, asks for a prompt of an earlier round, compares
the answer, asks for new prompts and sends SIGKILL at a random moment. Every fourth round a file is damaged as well.
The last line is one JSON object.
"""

import json
import random
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from benchmarks.harness.results import make_parser, tell
from benchmarks.harness.servers import ServerProcess, pings
from benchmarks.prefix_cache.asking import ANSWER_S, ask, launch, make_prompt


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=400, help="of a prompt")
    parser.add_argument("--prompts", type=int, default=8, help="different ones")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def damage(cache: Path, rng: random.Random) -> None:
    """Flip a bit of a file, or cut it."""
    files = sorted(cache.glob("*/*.kv"))
    if files:
        file = rng.choice(files)
        content = bytearray(file.read_bytes())
        if rng.random() < 0.5:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        file.write_bytes(content)


def run_round(options: Namespace, cache: Path, expected: list[str], rng: random.Random, log: Path) -> tuple[int, int]:
    """Return the wrong answers of one round, and the tokens that came from the disk."""
    with ServerProcess(launch(options.model, cache), log=log) as server:
        server.wait_until(pings, timeout_s=ANSWER_S)
        wrong = cached = 0
        for number in rng.sample(range(options.prompts), 2):
            asked = ask(server.port, make_prompt(options.tokens, number))
            wrong += asked.text != expected[number]
            cached += asked.cached_tokens
        with ThreadPoolExecutor(2) as pool:
            # New prompts, whose blocks are being written at the kill.
            for _ in range(2):
                pool.submit(_ask_quietly, server.port, make_prompt(options.tokens, rng.randrange(100, 10**6)))
            time.sleep(rng.random() * options.tokens / 400)
            server.close()
    return wrong, cached


def _ask_quietly(port: int, prompt: list[int]) -> None:
    with suppress(OSError, RuntimeError, ValueError):
        ask(port, prompt)


def main() -> None:
    options = parse_arguments()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        cache, log = Path(folder) / "cache", Path(folder) / "server.log"
        with ServerProcess(launch(options.model, None), log=log) as server:
            server.wait_until(pings, timeout_s=ANSWER_S)
            expected = [ask(server.port, make_prompt(options.tokens, number)).text for number in range(options.prompts)]
        wrong = cached = leftovers = 0
        for number in range(options.kills):
            if number % 4 == 3:
                damage(cache, rng)
            round_wrong, round_cached = run_round(options, cache, expected, rng, log)
            wrong, cached = wrong + round_wrong, cached + round_cached
            leftovers = len(list(cache.glob("*/*.tmp")))
            tell(f"{number}: {wrong} wrong, {cached} tokens from disk, {leftovers} temporary files")
    print(json.dumps({"kills": options.kills, "wrong": wrong, "failed_starts": 0, "cached_tokens": cached}))


if __name__ == "__main__":
    main()
