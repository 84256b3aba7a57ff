"""The language of Logs Insights over lines, and its refusals by name."""

import pytest

from headrace.platform.insights.evaluation import Line, run_query
from headrace.platform.insights.syntax import BadQuery, read_query

BEGIN_MS = 1_700_000_000_000
MESSAGES = (
    '{"level": "info", "event": "request.finished", "total_ms": 10.5, "usage": {"tokens": 7}, "codes": [1, 2]}',
    '{"level": "error", "event": "request.failed", "total_ms": 30, "status": "500"}',
    "plain text of user=alice took 12 ms",
    "plain text of user=bob took 8 ms",
    '{"level": "info", "event": "request.finished", "total_ms": 20}',
)
LINES = [
    Line(timestamp_ms=BEGIN_MS + 40_000 * n, message=message, stream=f"s{n % 2}", log="1:g", pointer=str(n))
    for n, message in enumerate(MESSAGES)
]
TABLE: dict[str, list[dict[str, str]]] = {
    "fields @message | limit 1": [{"@message": MESSAGES[4]}],
    "fields @timestamp, level | filter level = 'error'": [{"@timestamp": "2023-11-14 22:14:00.000", "level": "error"}],
    "filter @message like /took \\d+ ms$/ | fields @logStream": [{"@logStream": "s1"}, {"@logStream": "s0"}],
    "filter @message like 'alice' or status = 500 | fields @ptr": [{"@ptr": "2"}, {"@ptr": "1"}],
    "filter @message not like /plain/ and not (level in ['info', 'warn']) | fields status": [{"status": "500"}],
    "filter usage.tokens > 5 | fields usage.tokens, codes.1 as second": [{"usage.tokens": "7", "second": "2"}],
    "filter level != 'info' | fields level": [{"level": "error"}],
    "parse @message 'user=* took * ms' as user, took | filter ispresent(user) | sort took asc | fields user, took": [
        {"user": "bob", "took": "8"},
        {"user": "alice", "took": "12"},
    ],
    "parse @message /user=(?<who>\\w+)/ | stats count(*) as n by who | filter who = 'bob'": [{"who": "bob", "n": "1"}],
    "stats count(*), avg(total_ms), max(total_ms) as most, pct(total_ms, 50), sum(total_ms) / count(level) as mean": [
        {
            "count(*)": "5",
            "avg(total_ms)": "20.1666666666667",
            "most": "30",
            "pct(total_ms, 50)": "20",
            "mean": "20.1666666666667",
        }
    ],
    "stats count(*) as n by bin(1m) | sort n desc, bin(1m)": [
        {"bin(1m)": "2023-11-14 22:14:00.000", "n": "2"},
        {"bin(1m)": "2023-11-14 22:13:00.000", "n": "1"},
        {"bin(1m)": "2023-11-14 22:15:00.000", "n": "1"},
        {"bin(1m)": "2023-11-14 22:16:00.000", "n": "1"},
    ],
    "stats count_distinct(level) as levels, min(total_ms), stddev(total_ms), earliest(event), latest(event)": [
        {
            "levels": "2",
            "min(total_ms)": "10.5",
            "stddev(total_ms)": "7.96171394166412",
            "earliest(event)": "request.finished",
            "latest(event)": "request.finished",
        }
    ],
    "fields strlen(event) * 2 as length, toupper(level) as l | sort length desc | limit 1 | display l": [{"l": "INFO"}],
    "fields coalesce(level, 'none') as l | dedup l | display l": [{"l": "info"}, {"l": "none"}, {"l": "error"}],
    "stats sum(total_ms) as s by level | sort s | limit 1": [{"level": "error", "s": "30"}],
    "filter nothing > 1 | stats count(*)": [{"count(*)": "0"}],
    "fields greatest(2) as g, least(3) as l, trim('xax', 'x') as t, ltrim(10, 1) as n | limit 1": [
        {"g": "2", "l": "3", "t": "a", "n": "0"}
    ],
    "# a comment\nfields 7 % 4 - -2 ^ 2 as x | limit 1": [{"x": "-1"}],
}
REFUSED = {
    "pattern @message": "The command pattern is not supported by Headrace",
    "fields jsonParse(@message)": "The function jsonParse is not supported by Headrace",
    "filter count(*) > 1": "count is only supported in stats",
    "stats count(*) | stats count(*)": "Headrace supports one",
    "fields": "unexpected symbol found the end of the query",
    "": "The query is empty",
    "fields @message | | limit 1": "unexpected symbol found |",
    "limit 0": "expected a number from 1 to 10000",
    "fields @message; drop": "unexpected symbol found ;",
    "filter @message like /(/": "is no regular expression",
    "parse @message 'a * b' as x, y": "finds 1 values and names 2 fields",
    "stats avg(x) by bin(5q)": "5q is no period",
    f"filter {'(' * 400}1{')' * 400}": "nested deeper than",
    "fields abs(1, 2)": "abs has 2 operands; expected 1 to 1",
}


def rows(query: str, limit: int = 100) -> list[dict[str, str]]:
    result = run_query(read_query(query), LINES, limit=limit, max_characters=10_000)
    return [{cell["field"]: cell["value"] for cell in row} for row in result.rows]


@pytest.mark.parametrize("query", TABLE)
def test_a_query_returns_the_rows_that_it_asks_for(query: str) -> None:
    pointer = {"@ptr"} if "@ptr" not in query else set()
    assert [{name: row[name] for name in row if name not in pointer} for row in rows(query)] == TABLE[query]


@pytest.mark.parametrize("query", REFUSED)
def test_other_queries_are_refused_by_name(query: str) -> None:
    with pytest.raises(BadQuery) as caught:
        read_query(query)
    assert REFUSED[query] in str(caught.value)


def test_a_result_is_counted_and_bounded() -> None:
    result = run_query(read_query("filter level = 'info'"), LINES, limit=10, max_characters=150)
    assert (result.num_scanned, result.num_matched, len(result.rows)) == (5, 2, 1)
    assert result.num_bytes == sum(map(len, MESSAGES))
