"""Render a result as a table for people (a column for each level of load) and as a JSON object for programs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headrace.tools.bench.dialects import RequestTemplate
from headrace.tools.bench.measure import Spread, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The models and routes that the server reports."""

    models: tuple[str, ...] = ()
    info: dict[str, object] = field(default_factory=dict)
    software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """The figures of one level of load, and the CPU time they took."""

    label: str
    summary: Summary
    tool_cpu_s: float
    server_cpu_s: float | None
    first_failures: tuple[str, ...] = ()
    """Distinct error messages of the server."""

    @property
    def tool_share(self) -> float:
        """CPU time of the load tool as a share of one core."""
        return self.tool_cpu_s / self.summary.duration_s if self.summary.duration_s > 0 else 0.0

    @property
    def server_cpu_s_per_1k_tokens(self) -> float | None:
        """CPU seconds of the server for 1,000 output tokens."""
        if self.server_cpu_s is None or not self.summary.output_tokens:
            return None
        return 1000 * self.server_cpu_s / self.summary.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The complete result of a run of `headrace bench`."""

    url: str
    template: RequestTemplate
    facts: ServerFacts
    settings: dict[str, object]
    environment: dict[str, object]
    levels: tuple[LevelReport, ...]

    def as_json(self) -> dict[str, object]:
        """Return plain values. Times are seconds, names carry their units."""
        return {
            "url": self.url,
            "server": asdict(self.facts),
            "request": asdict(self.template),
            "settings": self.settings,
            "environment": self.environment,
            "levels": [
                {
                    "load": level.label,
                    **asdict(level.summary),
                    "tool_cpu_s": level.tool_cpu_s,
                    "server_cpu_s": level.server_cpu_s,
                    "server_cpu_s_per_1k_output_tokens": level.server_cpu_s_per_1k_tokens,
                    "first_failures": list(level.first_failures),
                }
                for level in self.levels
            ],
        }


def print_report(report: Report, console: Console) -> None:
    """Print the table and its caveats."""
    table = Table(
        title=f"{report.template.model or 'model'} at {report.url} ({report.template.api})",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True, min_width=max(len(name) for name, _ in _ROWS))
    for level in report.levels:
        table.add_column(level.label, justify="right", no_wrap=True)
    for name, cell in _ROWS:
        cells = [cell(level) for level in report.levels]
        if any(cells):
            table.add_row(name, *(text or "-" for text in cells))
    console.print(table)
    console.print("Times are p50 / p90 / p99.", highlight=False)
    for line in caveats(report.levels):
        console.print(line, soft_wrap=True, highlight=False)


def caveats(levels: Sequence[LevelReport]) -> list[str]:
    """Return warnings about figures that are easily misread."""
    lines = []
    if any(level.summary.tokens_counted_by != "server usage" for level in levels):
        lines.append(
            "The server reports no token counts: pieces of text are counted, which can be several tokens each."
        )
    for level in levels:
        lag = level.summary.send_lag_s
        if lag is not None and lag.p99 > 0.05:
            lines.append(
                f"{level.label}: requests were sent up to {lag.max:.2f} s late: the load tool was a bottleneck too."
            )
        if level.tool_share > 0.5:
            lines.append(
                f"{level.label}: the load tool used {level.tool_share:.0%} of a core that the server could have used."
            )
        lines.extend(f"{level.label}: failed: {message}" for message in level.first_failures)
    return lines


def _ms(spread: Spread | None) -> str:
    if spread is None:
        return ""
    values_ms = (1000 * value for value in (spread.p50, spread.p90, spread.p99))
    return " / ".join(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values_ms)


def _requests(level: LevelReport) -> str:
    summary = level.summary
    failed = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.failures.items()))
    return f"{summary.num_succeeded} of {summary.num_requests}" + (f" ({failed})" if failed else "")


def _number(value: float | None, form: str = ",.1f") -> str:
    return "" if value is None else format(value, form)


def _goodput(level: LevelReport) -> str:
    goodput = level.summary.goodput
    return "" if goodput is None else f"{goodput.requests_per_s:.2f} ({goodput.fraction:.0%})"


def _output_cost(level: LevelReport) -> str:
    cost = level.summary.cost
    return "" if cost is None else f"{cost.per_1k_output_tokens:.6f}"


def _total_cost(level: LevelReport) -> str:
    cost = level.summary.cost
    return "" if cost is None else _number(cost.per_1k_total_tokens, ".6f")


_ROWS: tuple[tuple[str, Callable[[LevelReport], str]], ...] = (
    ("answered", _requests),
    ("duration, s", lambda level: _number(level.summary.duration_s)),
    ("requests/s", lambda level: _number(level.summary.requests_per_s, ",.2f")),
    ("output tokens/s", lambda level: _number(level.summary.output_tokens_per_s)),
    ("all tokens/s", lambda level: _number(level.summary.total_tokens_per_s)),
    ("prompt tokens", lambda level: _number(level.summary.prompt_tokens, ",d")),
    ("  of them cached", lambda level: _number(level.summary.cached_tokens, ",d")),
    ("output tokens", lambda level: _number(level.summary.output_tokens, ",d")),
    ("time to first token, ms", lambda level: _ms(level.summary.ttft_s)),
    ("between tokens, ms", lambda level: _ms(level.summary.itl_s)),
    ("per output token, ms", lambda level: _ms(level.summary.tpot_s)),
    ("whole answer, ms", lambda level: _ms(level.summary.e2e_s)),
    ("good requests/s", _goodput),
    ("cost of 1,000 output tokens", _output_cost),
    ("cost of 1,000 tokens of both", _total_cost),
    ("server CPU s per 1,000 tokens", lambda level: _number(level.server_cpu_s_per_1k_tokens, ",.3f")),
    ("load tool, share of a core", lambda level: f"{level.tool_share:.0%}"),
)
