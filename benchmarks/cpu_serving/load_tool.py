"""Drive the independent load tool, `vllm bench serve`: one run at a time, with the CPU time of tool and server."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.cpu_serving.cells import Cell
from benchmarks.harness.proc import Usage, foreign_cores, read_usage, session_cpu_s
from benchmarks.harness.servers import MODEL_NAME

HOST = Path(__file__).with_name("tool_host.py")
_BEGIN = "Starting main benchmark run"
_END = "Serving Benchmark Result"


class ToolFailed(Exception):
    """The load tool did not finish a run; says where its output is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """One run of the tool."""

    result: dict[str, Any]
    """Its output: figures and the times of every request."""
    tool_cpu_s: float
    server_cpu_s: float
    """CPU time from the first request to the last answer."""
    foreign_cores: float
    """Cores that other processes used meanwhile, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTask:
    """The requests of one run, and their target."""

    cell: Cell
    url: str
    tokenizer: str
    trace: Path


def tool_arguments(task: ToolTask, result: Path) -> list[str]:
    """Return the arguments of `vllm bench serve` for one run."""
    cell = task.cell
    return [
        *("--backend", "openai", "--base-url", task.url, "--endpoint", "/v1/completions"),
        *("--model", MODEL_NAME, "--tokenizer", task.tokenizer),
        *("--dataset-name", "timed_trace", "--dataset-path", str(task.trace)),
        *("--timed-trace-chunk-hash-size", str(cell.piece_tokens), "--timed-trace-sec-multiplier", "1"),
        *("--num-prompts", str(cell.total_requests), "--max-concurrency", str(cell.slots)),
        # A connection per request: llama-server closes them after an answer, which the tool does not expect.
        *("--header", "Connection=close"),
        *("--num-warmups", str(cell.warmups), "--temperature", "0", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"),
        *("--save-result", "--save-detailed"),
        *("--result-dir", str(result.parent), "--result-filename", result.name),
    ]


class LoadTool:
    """A process that keeps the tool imported and runs it on request."""

    def __init__(self, python: str, *, scratch: Path) -> None:
        self._scratch = scratch
        self._log = scratch / "load-tool.log"
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONHASHSEED": "0",  # the tool makes prompts from Python's hash of a text
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(HOST)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._read_until(lambda line: line == "READY")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, task: ToolTask, *, server_session: int) -> ToolRun:
        """
        Send one trace and return what was measured.

        Raises:
            ToolFailed: The tool or a request failed.
        """
        result = self._scratch / "result.json"
        result.unlink(missing_ok=True)
        assert self._process.stdin is not None
        if self._process.poll() is not None:
            raise ToolFailed(f"The load tool has ended, see {self._log}.")
        self._process.stdin.write(json.dumps(tool_arguments(task, result)) + "\n")
        self._process.stdin.flush()
        self._read_until(lambda line: _BEGIN in line)
        before = self._usage(server_session)
        self._read_until(lambda line: _END in line)
        after = self._usage(server_session)
        self._read_until(lambda line: line == "DONE 0")
        values: dict[str, Any] = json.loads(result.read_text())
        if values["failed"] or values["completed"] != task.cell.total_requests:
            raise ToolFailed(f"{values['failed']} of {task.cell.total_requests} requests failed, see {self._log}.")
        (machine, tool_s, server_s), (machine_before, tool_before_s, server_before_s) = after, before
        # The machine's foreign time includes the tool's, which has a session of its own.
        tool_cores = (tool_s - tool_before_s) / (machine.at_s - machine_before.at_s)
        return ToolRun(
            result=values,
            tool_cpu_s=tool_s - tool_before_s,
            server_cpu_s=server_s - server_before_s,
            foreign_cores=max(0.0, foreign_cores(machine_before, machine) - tool_cores),
        )

    def close(self) -> None:
        """End the process and a run in progress. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _usage(self, server_session: int) -> tuple[Usage, float, float]:
        """Return the CPU seconds of the machine, of the tool and of the server up to now."""
        return read_usage(server_session), session_cpu_s(self._process.pid), session_cpu_s(server_session)

    def _read_until(self, wanted: Callable[[str], bool]) -> None:
        assert self._process.stdout is not None
        with self._log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                if wanted(line.strip()):
                    return
                if line.startswith("DONE"):
                    break
        raise ToolFailed(f"The load tool ended early, see {self._log}.")
