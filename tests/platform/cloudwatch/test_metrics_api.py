"""Measurements that are put and read by boto3, in all three protocols."""

import gzip
import math
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from tests.platform.cloudwatch.conftest import PROTOCOLS, client_of
from tests.platform.control.support import Platform

DIMENSIONS = [{"Name": "EndpointName", "Value": "e"}, {"Name": "VariantName", "Value": "AllTraffic"}]


def minute() -> datetime:
    """The last whole minute but one."""
    return datetime.fromtimestamp(time.time() // 60 * 60 - 60, UTC)


@pytest.fixture
def namespace() -> str:
    return f"Test/{uuid4().hex}"


def put(client, namespace, **datum):
    client.put_metric_data(Namespace=namespace, MetricData=[{"MetricName": "Latency", **datum}])


def read(client, namespace, at, **params):
    asked = {"Statistics": ["SampleCount", "Average", "Sum", "Minimum", "Maximum"], "Period": 60, **params}
    window = {"StartTime": at, "EndTime": at + timedelta(minutes=1)}
    return client.get_metric_statistics(Namespace=namespace, MetricName="Latency", **window, **asked)["Datapoints"]


def test_values_are_read_as_statistics(client, namespace):
    at = minute()
    for value in (1.0, 2.0, 6.0):
        put(client, namespace, Value=value, Timestamp=at, Unit="Milliseconds", Dimensions=DIMENSIONS)

    [point] = read(client, namespace, at, Dimensions=DIMENSIONS[::-1])

    assert point == {
        "Timestamp": at,
        "SampleCount": 3.0,
        "Average": 3.0,
        "Sum": 9.0,
        "Minimum": 1.0,
        "Maximum": 6.0,
        "Unit": "Milliseconds",
    }
    assert read(client, namespace, at) == []  # without its dimensions it is another metric
    assert read(client, namespace, at, Dimensions=DIMENSIONS, Unit="Seconds") == []


def test_values_with_counts_have_percentiles(client, namespace):
    at = minute()
    put(client, namespace, Values=[1.0, 5.0, 9.0], Counts=[90.0, 9.0, 1.0], Timestamp=at)

    [point] = read(client, namespace, at, ExtendedStatistics=["p50", "p95", "p100"])

    assert point["SampleCount"] == 100.0
    assert point["ExtendedStatistics"] == {"p50": 1.0, "p95": 5.0, "p100": 9.0}


def test_values_that_were_counted_zero_times_are_not_measurements(client, namespace):
    at = minute()
    put(client, namespace, Values=[1.0, 5.0], Counts=[2.0, 0.0], Timestamp=at)
    put(client, namespace, Values=[9.0], Counts=[0.0], Timestamp=at)

    [point] = read(client, namespace, at)

    assert (point["SampleCount"], point["Maximum"]) == (2.0, 1.0)


def test_a_call_needs_measurements_and_not_too_many(client, namespace):
    entity = {
        "Entity": {"KeyAttributes": {"Type": "Service", "Name": "s"}},
        "MetricData": [{"MetricName": "E", "Value": 1.0}],
    }
    client.put_metric_data(Namespace=namespace, EntityMetricData=[entity])
    assert [metric["MetricName"] for metric in client.list_metrics(Namespace=namespace)["Metrics"]] == ["E"]
    with pytest.raises(ClientError, match="MetricData"):
        client.put_metric_data(Namespace=namespace)
    with pytest.raises(ClientError, match="size greater than 1000"):
        client.put_metric_data(Namespace=namespace, MetricData=[{"MetricName": "M", "Value": 1.0}] * 1001)


def test_a_statistic_set_is_read_unchanged(client, namespace):
    at = minute()
    numbers = {"SampleCount": 4.0, "Sum": 10.0, "Minimum": 1.0, "Maximum": 4.0}
    put(client, namespace, StatisticValues=numbers, Timestamp=at)

    [point] = read(client, namespace, at, ExtendedStatistics=["p50"])

    assert {name: point[name] for name in numbers} == numbers
    assert "ExtendedStatistics" not in point  # as at AWS: its values are not known


def test_a_body_may_be_compressed(cloud: Platform, namespace, tmp_path):
    at = minute()
    for protocol in PROTOCOLS:
        client = client_of(cloud, protocol, tmp_path / protocol, request_min_compression_size_bytes=1)
        put(client, namespace, Value=2.0, Timestamp=at)

    [point] = read(client, namespace, at)

    assert point["SampleCount"] == 3.0


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(b"{}")[:-4], gzip.compress(b" " * 5_000_000)],
    ids=["not gzip", "cut off", "too large"],
)
def test_a_body_that_cannot_be_inflated_is_refused(cloud: Platform, body):
    headers = {"X-Amz-Target": "GraniteServiceVersion20100801.PutMetricData", "Content-Encoding": "gzip"}
    request = urllib.request.Request(cloud.url, body, headers, method="POST")

    with pytest.raises(urllib.error.HTTPError) as raised, urllib.request.urlopen(request):
        pass

    assert raised.value.code in (400, 413)
    raised.value.close()


@pytest.mark.parametrize(
    ("datum", "code", "words"),
    [
        ({}, "MissingParameter", "MetricData.member.1.Value"),
        ({"Value": 1.0, "Values": [1.0]}, "InvalidParameterCombination", "mutually exclusive"),
        (
            {"Value": float("nan")},
            "InvalidParameterValue",
            r"value NaN for parameter MetricData.member.1.Value is invalid",
        ),
        (
            {"Value": float("inf")},
            "InvalidParameterValue",
            r"value Infinity for parameter MetricData.member.1.Value is",
        ),
        ({"Values": [1.0, -math.inf]}, "InvalidParameterValue", r"value -Infinity for parameter \S+1.Values is"),
        ({"Value": 2.0**361}, "InvalidParameterValue", "MetricData.member.1.Value"),
        ({"Values": [1.0, 2.0], "Counts": [1.0]}, "InvalidParameterValue", "same size"),
        ({"Values": [1.0], "Counts": [-1.0]}, "InvalidParameterValue", "negative"),
        ({"Value": 1.0, "StorageResolution": 10}, "InvalidParameterValue", "StorageResolution"),
        ({"Value": 1.0, "Timestamp": datetime(2020, 1, 1, tzinfo=UTC)}, "InvalidParameterValue", "two weeks"),
        ({"Value": 1.0, "Dimensions": [DIMENSIONS[0], DIMENSIONS[0]]}, "InvalidParameterValue", "twice"),
        (
            {"StatisticValues": {"SampleCount": 1.0, "Sum": 1.0, "Minimum": 2.0, "Maximum": 1.0}},
            "InvalidParameterValue",
            "Minimum",
        ),
        (
            {"StatisticValues": {"SampleCount": 0.0, "Sum": 1.0, "Minimum": 1.0, "Maximum": 1.0}},
            "InvalidParameterValue",
            "SampleCount must be greater than 0",
        ),
        ({"Values": [1.0] * 151}, "InvalidParameterValue", "size greater than 150"),
        ({"Values": []}, "MissingParameter", "Value"),
        ({"Value": 1.0, "Unit": "Furlongs"}, "ValidationError", "enum value set"),
    ],
)
def test_a_call_with_invalid_data_is_refused_as_a_whole(client, namespace, datum, code, words):
    good = {"MetricName": "Good", "Value": 1.0}
    bad = {"MetricName": "Latency", **datum}

    with pytest.raises(ClientError, match=words) as raised:
        client.put_metric_data(Namespace=namespace, MetricData=[bad, good])

    assert raised.value.response["Error"]["Code"] == code
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert client.list_metrics(Namespace=namespace)["Metrics"] == []


def test_an_error_has_its_class_in_boto3(client, namespace):
    with pytest.raises(client.exceptions.InvalidParameterCombinationException, match="At least one"):
        client.get_metric_statistics(
            Namespace=namespace, MetricName="Latency", StartTime=minute(), EndTime=minute(), Period=60
        )


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"Period": 45}, "InvalidParameterValue"),
        ({"StartTime": minute(), "EndTime": minute()}, "InvalidParameterValue"),
        ({"StartTime": minute() - timedelta(days=2), "EndTime": minute()}, "InvalidParameterCombination"),
        ({"ExtendedStatistics": ["p101"]}, "InvalidParameterValue"),
    ],
)
def test_invalid_requests_for_statistics_are_refused(client, namespace, params, code):
    asked = {"StartTime": minute(), "EndTime": minute() + timedelta(minutes=1), "Period": 60, "Statistics": ["Sum"]}

    with pytest.raises(ClientError) as raised:
        client.get_metric_statistics(Namespace=namespace, MetricName="Latency", **{**asked, **params})

    assert raised.value.response["Error"]["Code"] == code


def test_metrics_are_listed_by_namespace_name_and_dimensions(client, namespace):
    put(client, namespace, Value=1.0)
    put(client, namespace, Value=1.0, Dimensions=DIMENSIONS)

    def listed(**params):
        return [len(query["Dimensions"]) for query in client.list_metrics(Namespace=namespace, **params)["Metrics"]]

    assert listed() == [0, 2]
    assert listed(MetricName="Other") == []
    assert listed(RecentlyActive="PT3H") == [0, 2]
    assert listed(Dimensions=[{"Name": "EndpointName"}]) == [2]
    assert listed(Dimensions=[{"Name": "EndpointName", "Value": "other"}]) == []


def test_long_lists_are_split_into_pages(client, namespace):
    data = [{"MetricName": f"M{number:03d}", "Value": 1.0} for number in range(501)]
    client.put_metric_data(Namespace=namespace, MetricData=data)

    pages = list(client.get_paginator("list_metrics").paginate(Namespace=namespace))

    assert [len(page["Metrics"]) for page in pages] == [500, 1]
    names = [metric["MetricName"] for page in pages for metric in page["Metrics"]]
    assert names == [datum["MetricName"] for datum in data]
    with pytest.raises(ClientError, match="NextToken"):
        client.list_metrics(NextToken="what")


def query(name, namespace, stat="Sum", **members):
    metric = {"Namespace": namespace, "MetricName": "Latency"}
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": 60, "Stat": stat}, **members}


def test_metric_data_are_returned_newest_first_in_pages(client, namespace):
    end = minute() + timedelta(minutes=1)
    times = [end - timedelta(minutes=number) for number in (3, 2, 1)]
    for number, at in enumerate(times, 1):
        put(client, namespace, Value=float(number), Timestamp=at)
    queries = [query("a", namespace), query("hidden", namespace, ReturnData=False), query("b", namespace, "p50")]
    asked = {"MetricDataQueries": queries, "StartTime": times[0], "EndTime": end}

    whole = client.get_metric_data(**asked)
    rising = client.get_metric_data(**asked, ScanBy="TimestampAscending")
    pages = list(client.get_paginator("get_metric_data").paginate(**asked, PaginationConfig={"PageSize": 2}))

    assert [result["Id"] for result in whole["MetricDataResults"]] == ["a", "b"]
    first = whole["MetricDataResults"][0]
    assert (first["Values"], first["Timestamps"]) == ([3.0, 2.0, 1.0], times[::-1])
    assert (first["Label"], first["StatusCode"]) == ("Latency", "Complete")
    assert rising["MetricDataResults"][0]["Values"] == [1.0, 2.0, 3.0]
    assert len(pages) == 3
    for name in ("a", "b"):
        values = [
            v
            for page in pages
            for result in page["MetricDataResults"]
            if result["Id"] == name
            for v in result["Values"]
        ]
        assert values == [3.0, 2.0, 1.0]


def test_expressions_are_computed_from_other_queries(client, namespace):
    at = minute()
    put(client, namespace, Values=[1.0, 5.0], Timestamp=at)
    queries = [
        query("m1", namespace, ReturnData=False),
        query("m2", namespace, "SampleCount", ReturnData=False),
        {"Id": "mean", "Expression": "m1 / m2", "Label": "the mean"},
        {"Id": "twice", "Expression": "mean * 2"},
        {"Id": "both", "Expression": "METRICS()"},
    ]

    found = client.get_metric_data(MetricDataQueries=queries, StartTime=at, EndTime=at + timedelta(minutes=1))[
        "MetricDataResults"
    ]

    results = [(entry["Id"], entry["Label"], entry["Values"]) for entry in found]
    assert results[:2] == [("mean", "the mean", [3.0]), ("twice", "twice", [6.0])]
    assert [(name, values) for name, _, values in results[2:]] == [("both", [6.0]), ("both", [2.0])]


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([{"Id": "A"}], "expected pattern"),
        ([{"Id": "a"}], "either MetricStat or Expression"),
        ([query("a", "n"), query("a", "n")], "more than one"),
        ([query("a", "n", "Mode")], "Stat"),
        ([{"Id": "a", "Expression": "b + 1"}], "no query with the id"),
        ([{"Id": "a", "Expression": "a + 1"}], "itself"),
        ([{"Id": "a", "Expression": "1 +"}], "Error in expression"),
        ([{"Id": "a", "Expression": "ANOMALY_DETECTION_BAND(1)"}], "not supported"),
    ],
)
def test_invalid_queries_are_refused(client, queries, words):
    with pytest.raises(ClientError, match=words):
        client.get_metric_data(MetricDataQueries=queries, StartTime=minute(), EndTime=minute() + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"MetricDataQueries": []}, "at least one query"),
        ({"MetricDataQueries": [query(f"m{n}", "n") for n in range(501)]}, "size greater than 500"),
        ({"EndTime": minute() - timedelta(days=1)}, "StartTime must be less"),
        ({"MaxDatapoints": 0}, "MaxDatapoints must be greater than 0"),
        ({"LabelOptions": {"Timezone": "Mars"}}, "LabelOptions.Timezone is 'Mars'"),
    ],
)
def test_invalid_requests_for_data_are_refused(client, params, words):
    asked = {"MetricDataQueries": [query("a", "n")], "StartTime": minute(), "EndTime": minute() + timedelta(minutes=1)}
    with pytest.raises(ClientError, match=words):
        client.get_metric_data(**{**asked, **params})


def test_unsupported_operations_are_refused_by_name(client):
    with pytest.raises(ClientError, match="GetInsightRuleReport is not supported") as raised:
        client.get_insight_rule_report(RuleName="r", StartTime=0, EndTime=60, Period=60)

    assert raised.value.response["Error"]["Code"] == "UnknownOperationException"
