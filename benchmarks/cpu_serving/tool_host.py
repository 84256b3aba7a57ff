"""
Run `vllm bench serve` repeatedly without importing vLLM again, which takes ten seconds or more.

Started by `load_tool.py` with the interpreter of vLLM's environment. Reads one JSON list of arguments per line from
standard input, runs the tool on it in a forked child, and answers with a line that begins with `DONE`. The tool's
output goes to standard output unchanged.
"""

import json
import os
import sys
import traceback

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser


def run_tool(arguments: list[str]) -> int:
    """Run `vllm bench serve` with these arguments in a child; returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        main(parser.parse_args(arguments))
        code = 0
    except Exception:  # noqa: BLE001 - the child's edge: it must not return into the parent's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


print("READY", flush=True)
for line in sys.stdin:
    print(f"DONE {run_tool(json.loads(line))}", flush=True)
