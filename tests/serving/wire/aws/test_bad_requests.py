"""Any bytes become a call or an `AwsError` that can be rendered: never another exception, never a 5xx."""

import json
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serving.wire.aws import calls, services
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import AwsCall, HttpRequest
from headrace.serving.wire.aws.identify import identify
from tests.serving.wire.aws.client_side import error_of

JSON_TARGETS = [
    "SageMaker.CreateModel",
    "SageMaker.CreateEndpointConfig",
    "SageMaker.UpdateEndpoint",
    "SageMaker.Search",
    "SageMaker.ListEndpoints",
    "Logs_20140328.FilterLogEvents",
    "AnyScaleFrontendService.PutScalingPolicy",
    "GraniteServiceVersion20100801.PutMetricData",
    "SageMaker.NoSuchThing",
    "Elsewhere.Thing",
    ".",
    "",
]


def _names(shape):
    """Members of a structure, and of the structures in it."""
    inner = [getattr(member, "members", ()) for member in shape.members.values()]
    return {*shape.members, *(name for names in inner for name in names)}


MEMBERS = sorted(
    {
        name
        for operation in ("CreateModel", "CreateEndpointConfig", "UpdateEndpoint", "Search")
        for name in _names(services.operation("sagemaker", operation).input_shape)
    }
)
FORM = {"content-type": "application/x-www-form-urlencoded"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from([2**31, -(2**63) - 1, 10**400, "", "a" * 300, "NaN", "\x00", "ml.g5.xlarge", "s3://b/k"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=12,
)


def check(request):
    outcome = parse(request)
    if isinstance(outcome, AwsError):
        target = identify(request)
        response = calls.render_error(target, outcome, "the-id")
        assert 400 <= response.status < 500
        assert error_of(target.protocol, response)[0] == outcome.code
    else:
        assert isinstance(outcome, AwsCall)


def parse(request):
    try:
        return calls.parse(request)
    except AwsError as error:
        return error


def as_json(value):
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


@pytest.mark.parametrize("target", JSON_TARGETS)
@given(body=values.map(as_json) | st.binary(max_size=60))
def test_any_json_body_is_parsed_or_refused(target, body):
    check(HttpRequest("POST", "/", "", {"x-amz-target": target}, body))


@given(
    action=st.sampled_from(["GetCallerIdentity", "AssumeRole", "GetRole", "SimulatePrincipalPolicy", "None", ""]),
    fields=st.dictionaries(
        st.lists(
            st.sampled_from(
                [
                    "RoleArn",
                    "RoleName",
                    "ActionNames",
                    "ContextEntries",
                    "ContextKeyValues",
                    "member",
                    "1",
                    "0",
                    "x",
                    "",
                ]
            )
            | st.text(max_size=3),
            max_size=5,
        ).map(".".join),
        st.text(max_size=5),
        max_size=8,
    ),
    raw=st.binary(max_size=30),
    version=st.sampled_from(["&Version=2011-06-15", "&Version=2010-05-08", ""]),
)
def test_any_form_is_parsed_or_refused(action, fields, raw, version):
    body = f"Action={action}{version}&{urlencode(fields)}&".encode() + raw
    check(HttpRequest("POST", "/", "", FORM, body))


RUNTIME_HEADERS = [
    *(
        member.serialization["name"].lower()
        for member in services.operation("sagemaker-runtime", "InvokeEndpointAsync").input_shape.members.values()
        if member.serialization.get("location") == "header"
    ),
    "x-amzn-sagemaker-session-id",
    "x-amzn-sagemaker-target-variant",
]


@given(
    name=st.text(max_size=70) | st.sampled_from(["%", "%ff", "%00", "..", "a" * 5000]),
    action=st.sampled_from(["invocations", "invocations-response-stream", "async-invocations", "other"]),
    headers=st.dictionaries(st.sampled_from(RUNTIME_HEADERS), st.text(max_size=20), max_size=4),
    query=st.text(max_size=10),
    body=st.binary(max_size=20),
)
def test_any_runtime_request_is_parsed_or_refused(name, action, headers, query, body):
    check(HttpRequest("POST", f"/endpoints/{name}/{action}", query, headers, body))


@settings(max_examples=300)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE", "X"]),
    path=st.text(max_size=10),
    query=st.text(max_size=10),
    headers=st.dictionaries(
        st.sampled_from(["x-amz-target", "authorization", "content-type", "accept"]), st.text(max_size=20)
    ),
    body=st.binary(max_size=20),
)
def test_any_request_is_parsed_or_refused(method, path, query, headers, body):
    check(HttpRequest(method, path, query, headers, body))


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"nul",
        b'{"ModelName": NaN}',
        b'{"ModelName": "\\ud800"}',
        b'{"ModelName": "\xff"}',
        b'{"ModelName": ' + b"[" * DEEP,
        b'{"SearchExpression":' * DEEP + b"1" + b"}" * DEEP,
        b'{"Resource": ' + b"9" * 6000 + b"}",
        b'{"CreationTimeAfter": 1e300}',
        b"\x00" * 50,
        b"\xef\xbb\xbf{}",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("target", ["SageMaker.Search", "SageMaker.ListModels", "SageMaker.CreateModel"])
def test_well_known_bad_bodies(target, body):
    check(HttpRequest("POST", "/", "", {"x-amz-target": target}, body))


@pytest.mark.parametrize("depth", range(50, 1000, 50))
def test_a_deeply_nested_value_is_refused_or_accepted(depth):
    inner = b'{"SubExpressions":[' * depth + b"]}" * depth
    body = b'{"Resource": "TrainingJob", "SearchExpression":' + inner + b"}"

    check(HttpRequest("POST", "/", "", {"x-amz-target": "SageMaker.Search"}, body))


@pytest.mark.parametrize(
    "body",
    [
        b"Action=GetRole&" + b"&".join(b"a%d=1" % number for number in range(20_000)),
        b"Action=GetRole&" + b"a." * 5000 + b"a=1",
        b"Action=SimulatePrincipalPolicy&ActionNames.member.99999999999999999999=a",
        b"Action=SimulatePrincipalPolicy&ActionNames=a&ActionNames.member.1.x=a",
        "Action=SimulatePrincipalPolicy&ActionNames.member.²=a".encode(),
        b"Action=GetRole&RoleName.x=1",
        b"Action=GetRole&RoleName=%ff%00",
    ],
    ids=range(7),
)
def test_well_known_bad_forms(body):
    check(HttpRequest("POST", "/", "", {**FORM, "authorization": "Credential=a/d/r/iam/aws4_request,"}, body))


@pytest.mark.parametrize("name", ["PutMetricData", "DeleteAlarms", "AssumeRole"])
def test_an_image_in_a_web_page_changes_nothing(name):
    request = HttpRequest("GET", "/", f"Action={name}", {}, b"")
    with pytest.raises(AwsError, match="expected POST") as refused:
        calls.parse(request)
    assert refused.value.http_status == 405
    assert calls.parse(HttpRequest("GET", "/", "Action=GetCallerIdentity", {}, b"")).operation == "GetCallerIdentity"


def test_an_unknown_operation_is_named():
    with pytest.raises(AwsError, match=r"sagemaker\.MakeCoffee is not a known operation"):
        calls.parse(HttpRequest("POST", "/", "", {"x-amz-target": "SageMaker.MakeCoffee"}, b"{}"))
    with pytest.raises(AwsError, match="Could not find operation MakeCoffee for service sts") as caught:
        calls.parse(HttpRequest("POST", "/", "", FORM, b"Action=MakeCoffee&Version=2011-06-15"))
    assert caught.value.code == "InvalidAction"


@pytest.mark.parametrize(
    ("headers", "body", "name", "code"),
    [
        (FORM, b"Action=CreateDBInstance&Version=2014-10-31", "rds CreateDBInstance", "InvalidAction"),
        ({"x-amz-target": "TrentService.Encrypt"}, b"{}", "rds Encrypt", "UnknownOperationException"),
        ({}, b"", "rds", "UnknownOperationException"),
    ],
)
def test_a_service_that_is_not_served_is_named(headers, body, name, code):
    scope = "Credential=a/d/r/rds/aws4_request,"
    with pytest.raises(AwsError, match=f"^{name} is not supported by Headrace: docs/coverage.md") as caught:
        calls.parse(HttpRequest("POST", "/", "", {"authorization": scope, **headers}, body))
    assert caught.value.code == code


def test_a_service_refuses_protocols_that_it_does_not_have():
    headers = {**FORM, "authorization": "Credential=a/d/r/sagemaker/aws4_request,"}

    with pytest.raises(AwsError, match="Could not find operation ListModels"):
        calls.parse(HttpRequest("POST", "/", "", headers, b"Action=ListModels"))
