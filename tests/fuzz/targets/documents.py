"""Texts inside the parameters of AWS calls: policies, dashboards, cards, workloads, patterns and queries of logs."""

import json

import yaml

from headrace.platform.account.dashboards import DASHBOARDS
from headrace.platform.account.iam import check_document
from headrace.platform.control.api.cards import _check_content
from headrace.platform.control.api.log_lines import read_pattern
from headrace.platform.control.api.search import _card_members, _fits
from headrace.platform.control.model.workload_spec import WorkloadInvalid, bench_arguments, dataset_lines, read_workload
from headrace.platform.insights.evaluation import Line, run_query
from headrace.platform.insights.syntax import BadQuery, read_query
from headrace.serving.wire.aws import calls
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.fuzz.target import Target

_MAX_STORED_CHARACTERS = 100


def _policy(data):
    check_document({"PolicyDocument": data.decode("utf-8", "replace")})


def _dashboard(data):
    assert DASHBOARDS.check is not None
    DASHBOARDS.check({"DashboardName": "d", "DashboardBody": data.decode("utf-8", "replace")})


def _card(data):
    """A model card that was accepted can be searched."""
    content = data.decode("utf-8", "replace")
    _check_content(content)
    assert all(isinstance(value, str) for value in _card_members({"Content": content}).values())


def _search(data):
    """An expression of Search that was accepted finds documents, or none."""
    request = HttpRequest("POST", "/", "", {"x-amz-target": "SageMaker.Search"}, data)
    _fits(_FOUND, calls.parse(request).params.get("SearchExpression", {}))


def _workload(data):
    """A workload becomes options of `headrace bench`, and does not stand for more than it says."""
    spec = read_workload(data.decode("utf-8", "replace"))
    assert all(isinstance(option, str) for option in bench_arguments(spec))
    assert len(json.dumps(spec, default=str, skipkeys=True)) <= _MAX_STORED_CHARACTERS * (1 + len(data))


def _dataset(data):
    for line in dataset_lines(data.decode("utf-8", "replace")).split("\n"):
        assert not line or json.loads(line) is not Ellipsis


def _pattern(data):
    """The first line is a filter pattern, the others are lines of a log."""
    pattern, *lines = data.decode("utf-8", "replace").split("\n")
    wanted = read_pattern(pattern)
    for line in (*lines, '{"a": {"b": [1, "x"]}, "status": 500}'):
        assert wanted.fits(line) in {True, False}


def _query(data):
    """The first line is a query of Logs Insights, the others are lines of a log: short, as a regex may take long."""
    query, *lines = data.decode("utf-8", "replace").split("\n")
    found = [*(line[:20] for line in lines), '{"a": {"b": 1.5}, "m": "x y", "l": [1, 2]}', _LARGE, "time=12 level=info"]
    scanned = [
        Line(timestamp_ms=1000 * at, message=line, stream="s", log="g", pointer=str(at))
        for at, line in enumerate(found)
    ]
    result = run_query(read_query(query), scanned, limit=5, max_characters=10_000)
    assert all(isinstance(cell["value"], str) for row in result.rows for cell in row)


_FOUND = {
    "LastModifiedTime": 1.7e9,
    "EndpointName": "e",
    "Count": 2,
    "IsOn": True,
    "Tags": [{"Key": "k", "Value": "v"}],
    "Variants": [{"Weight": 1.0, "Name": "a"}, {"Weight": 2.0}],
    "Empty": None,
}
_LARGE = f'{{"a": {"9" * 400}, "m": -{"9" * 400}}}'
_POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
_WIDGET = {"type": "metric", "x": 0, "y": 0, "width": 6, "height": 6, "properties": {"metrics": [["n", "m", "d", "v"]]}}
_CARD = {
    "model_overview": {"model_id": "m"},
    "intended_uses": {"risk_rating": "Low"},
    "model_package_details": {"model_package_group_name": "g"},
}
_FILTERS = [
    {"Name": "Tags.k", "Operator": "Equals", "Value": "v"},
    {"Name": "Variants.Weight", "Operator": "GreaterThan", "Value": "1.5"},
    {"Name": "LastModifiedTime", "Operator": "LessThan", "Value": "2026-01-01T00:00:00Z"},
    {"Name": "EndpointName", "Operator": "In", "Value": "a,e"},
]
_SEARCH = {
    "Resource": "Endpoint",
    "SearchExpression": {"Filters": _FILTERS, "Operator": "Or", "SubExpressions": [{"Filters": _FILTERS[:1]}]},
}
_WORKLOAD = {
    "benchmark": {"type": "aiperf"},
    "parameters": {
        "concurrency": 4,
        "request_count": 10,
        "request_rate": 2.5,
        "endpoint_type": "chat",
        "streaming": True,
        "prompt_input_tokens_mean": 100,
        "prompt_input_tokens_stddev": 10,
        "output_tokens_mean": 5,
    },
    "tooling": {"api_standard": "openai"},
}
_YAML_WORDS = (
    b"&a [*a, *a]",
    b"<<: *a",
    b"? ",
    b"2001-99-01",
    b"2001-01-01",
    b"!!binary x",
    b".inf",
    b".nan",
    b"0x" + b"f" * 5000,
    b"9" * 5000,
)

TARGETS = (
    Target(
        "iam-policy",
        _policy,
        (AwsError,),
        lambda: {"usual": json.dumps(_POLICY).encode()},
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "dashboard",
        _dashboard,
        (AwsError,),
        lambda: {"usual": json.dumps({"widgets": [_WIDGET]}).encode()},
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "model-card", _card, (AwsError,), lambda: {"usual": json.dumps(_CARD).encode()}, is_json=True, suite_cases=300
    ),
    Target(
        "search-expression",
        _search,
        (AwsError,),
        lambda: {"usual": json.dumps(_SEARCH).encode()},
        words=(b"NotEquals", b"Contains", b"NotExists", b"NestedFilters", b"Tags.", b"..", b"Count", b"IsOn", b"1e999"),
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "workload-spec",
        _workload,
        (WorkloadInvalid,),
        lambda: {"json": json.dumps(_WORKLOAD).encode(), "yaml": yaml.safe_dump(_WORKLOAD).encode()},
        words=(*_YAML_WORDS, b"custom_dataset_type", b"output_tokens_stddev", b"endpoint_type: [a]"),
        is_json=True,
        suite_cases=80,
    ),
    Target(
        "workload-dataset",
        _dataset,
        (WorkloadInvalid,),
        lambda: {"two": b'{"text": "a"}\n\n{"prompt": "b", "output_tokens": 3}'},
        words=(b"[" * 5000, b"\n", b"\xc2\x85", b'"text": ', b"9" * 5000, b"NaN"),
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "log-pattern",
        _pattern,
        (AwsError,),
        lambda: {
            "json": b'{ ($.status >= 500 || $.a.b[1] = "x*") && $.c NOT EXISTS }\n{"status": 501}',
            "words": b'error ?warn -"exact words"\nan error',
        },
        words=(b"$.", b"['a']", b"IS NULL", b"&&", b"||", b"(" * 60, b"!=", b"1e999", b"*", b"\\", b"%a%", b"9" * 5000),
        suite_cases=400,
    ),
    Target(
        "log-query",
        _query,
        (BadQuery,),
        lambda: {
            "stats": b"filter @message like /a(b)?/ | stats count(*), pct(a.b, 95) as p by bin(5m), m | sort p desc",
            "fields": b'fields @timestamp, strlen(m) * 2 as x | parse @message "time=* level=*" as t, l | limit 3',
            "more": b"parse @message /(?<n>\\d+)/ | dedup n | display n, coalesce(l.0, 'none')\n{\"a\": 1e308}\n7 8",
        },
        words=(
            *(b"| ", b"stats ", b"by ", b"bin(1s)", b"like ", b"not in [", b"/(?<a>x)/", b"(" * 60, b"1e308", b"- "),
            *(
                b"@timestamp",
                b"datefloor(@timestamp, 1h)",
                b"greatest(",
                b"substr(",
                b"log(",
                b"9" * 400,
                b"`",
                b'{"a": ',
            ),
        ),
        suite_cases=300,
        limit_s=4,
    ),
)
