"""Each request reaches its application, if its credentials allow it."""

from collections.abc import Iterator

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from headrace.serving.http.body import FREE_BYTES
from tests import plain_http
from tests.serving.wire.test_unknown_routes import FOREIGN, OF_SERVERS, message_of
from tests.waiting import WAIT_S

from .named_apps import CBOR, FORM, KEY, LIST_METRICS, SECRET, TARGET, platform, sagemaker_token, signed


@pytest.fixture(scope="module")
def opened() -> Iterator[str]:
    with platform(is_open=True, allowed_hosts=("devbox",)) as url:
        yield url


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    with platform(is_open=False) as url:
        yield url


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "wanted"),
    [
        ("POST", "/endpoints/a/invocations", {}, b"{}", "gateway"),
        ("POST", "/endpoints/a/invocations-response-stream", {}, b"{}", "gateway"),
        ("POST", "/endpoints/a/openai/v1/chat/completions", {}, b"{}", "gateway"),
        ("GET", "/v1/models", {}, b"", "gateway"),
        ("POST", "/", TARGET, b"{}", "control"),
        ("POST", "/", FORM, b"Action=GetCallerIdentity&Version=2011-06-15", "control"),
        ("POST", "/", FORM, b"Action=ListMetrics&Version=2010-08-01", "control"),
        ("POST", LIST_METRICS, CBOR, b"\xa0", "control"),
        ("POST", LIST_METRICS, {}, b"", "s3"),
        ("GET", "/console/api/rates", {}, b"", "console"),
        ("GET", "/bucket/key", {}, b"", "s3"),
        ("GET", "/docs", {}, b"", "s3"),
        ("GET", "/", {}, b"", "s3"),
        ("PUT", "/bucket", {}, b"", "s3"),
        ("POST", "/bucket?delete", {}, b"<Delete/>", "s3"),
        ("GET", "/healthy/key", {}, b"", "s3"),
    ],
)
def test_an_unsigned_request_is_routed(
    opened: str, method: str, path: str, headers: dict[str, str], body: bytes, wanted: str
) -> None:
    response = plain_http.request(method, opened + path, headers=headers, content=body, timeout=WAIT_S)
    assert response.json() == {"served_by": wanted, "bytes": len(body)}


@pytest.mark.parametrize(
    "path", ["/console", "/v1/models", "/health", "/metrics", "/docs", "/openapi.json", "/endpoints/x/invocations"]
)
def test_what_is_signed_for_s3_is_a_bucket_whatever_its_name(opened: str, path: str) -> None:
    assert signed(opened, "s3", method="GET", path=path).json()["served_by"] == "s3"


def test_the_description_of_the_api_and_its_page_need_no_key(closed: str) -> None:
    document = plain_http.get(f"{closed}/openapi.json", timeout=WAIT_S).json()
    page = plain_http.get(f"{closed}/docs", headers={"Accept": "text/html"}, timeout=WAIT_S)
    script = plain_http.get(f"{closed}/docs/api.js", timeout=WAIT_S)
    assert "/v1/chat/completions" in document["paths"]
    assert "Headrace API" in page.text
    assert script.status_code == 200


def test_a_browser_at_the_root_is_redirected_to_the_console(opened: str) -> None:
    response = plain_http.get(opened, headers={"Accept": "text/html,*/*"}, timeout=WAIT_S)
    assert (response.status_code, response.headers["location"]) == (303, "/console")


@pytest.mark.parametrize(
    ("method", "path", "form", "said"),
    [case for case in (*FOREIGN, *OF_SERVERS) if not case[1].startswith("/v1/")],
)
def test_clients_of_other_servers_are_told_what_to_use(
    opened: str, method: str, path: str, form: str, said: str
) -> None:
    answer = plain_http.request(method, f"{opened}{path}", content=b"{}" if method == "POST" else None)
    assert answer.status_code == 404
    assert said.replace("/invocations", "/endpoints/NAME/invocations") in message_of(form, answer.content)


def test_unsigned_requests_of_ollamas_clients_are_for_the_gateway(opened: str) -> None:
    for method, path in (("POST", "/api/chat"), ("POST", "/api/show"), ("GET", "/api/tags"), ("HEAD", "/api/version")):
        assert plain_http.request(method, f"{opened}{path}").status_code == 200
    assert plain_http.post(f"{opened}/api/embed").json()["served_by"] == "gateway"


def test_objects_whose_names_resemble_another_servers_paths_are_objects(opened: str) -> None:
    for method, path in (("GET", "/predictions/key"), ("PUT", "/api/chat"), ("GET", "/completions/key")):
        assert plain_http.request(method, f"{opened}{path}").json()["served_by"] == "s3"
    assert signed(opened, "s3", method="POST", path="/api/chat").json()["served_by"] == "s3"


def test_health_and_metrics_are_answered_here(opened: str) -> None:
    assert plain_http.get(f"{opened}/health", timeout=WAIT_S).json()["service"] == "headrace"
    assert plain_http.get(f"{opened}/metrics", timeout=WAIT_S).json()["served_by"] == "metrics"
    for path in ("/health", "/"):
        assert plain_http.head(f"{opened}{path}", timeout=WAIT_S).status_code == 200
    with platform(is_open=True, status="degraded") as ill:
        assert plain_http.get(f"{ill}/health", timeout=WAIT_S).status_code == 503


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:7450", "Origin": "http://evil.example:7450"},
        {"Host": "127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    ],
)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/bucket/key", "/console", "/"])
def test_pages_of_other_origins_are_refused(opened: str, headers: dict[str, str], path: str) -> None:
    assert plain_http.get(opened + path, headers=headers, timeout=WAIT_S).status_code == 403


def test_a_link_in_a_page_of_another_site_is_opened(opened: str) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert plain_http.get(f"{opened}/health", headers=headers, timeout=WAIT_S).status_code == 200


def test_a_person_under_another_name_gets_a_page(opened: str) -> None:
    headers = {"Host": "evil.example:7450", "Accept": "text/html"}
    refused = plain_http.get(f"{opened}/console", headers=headers, timeout=WAIT_S)
    assert refused.status_code == 403
    assert "HEADRACE_UP_ALLOWED_HOSTS=evil.example" in refused.text


def test_named_hosts_apply_to_a_platform_with_keys_too() -> None:
    with platform(is_open=False, allowed_hosts=("devbox",)) as url:
        assert plain_http.get(f"{url}/health", headers={"Host": "other"}, timeout=WAIT_S).status_code == 403
        assert plain_http.get(f"{url}/health", headers={"Host": "devbox"}, timeout=WAIT_S).status_code == 200


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:1", "10.0.0.1", "bucket.localhost", "DevBox:7450"])
def test_local_names_and_named_hosts_are_served(opened: str, host: str) -> None:
    assert plain_http.get(f"{opened}/health", headers={"Host": host}, timeout=WAIT_S).status_code == 200
    own_page = {"Host": host, "Origin": f"http://{host.lower()}"}
    assert plain_http.get(f"{opened}/health", headers=own_page, timeout=WAIT_S).status_code == 200


@pytest.mark.parametrize(
    ("service", "path", "headers", "wanted"),
    [
        ("sagemaker", "/", TARGET, "control"),
        ("sts", "/", FORM, "control"),
        ("monitoring", LIST_METRICS, CBOR, "control"),
        ("sagemaker", "/endpoints/a/invocations", {}, "gateway"),
    ],
)
def test_a_signed_request_passes_with_its_body(
    closed: str, service: str, path: str, headers: dict[str, str], wanted: str
) -> None:
    body = b"Action=GetCallerIdentity&Version=2011-06-15" if headers is FORM else b'{"a": 1}'
    response = signed(closed, service, path=path, body=body, **headers)
    assert response.json() == {"served_by": wanted, "bytes": len(body)}
    assert response.headers["x-caller"] == KEY


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/endpoints/a/openai/v1/chat/completions"])
def test_a_secret_is_a_bearer_key(closed: str, path: str) -> None:
    right = plain_http.post(closed + path, content=b"{}", headers={"Authorization": f"Bearer {SECRET}"}, timeout=WAIT_S)
    assert (right.json()["served_by"], right.headers["x-caller"]) == ("gateway", KEY)
    for wrong in ({"Authorization": "Bearer no"}, {"Authorization": f"Bearer {KEY}"}, {}):
        refused = plain_http.post(closed + path, content=b"{}", headers=wrong, timeout=WAIT_S)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"


def test_a_token_of_the_sagemaker_sdk_opens_the_routes_of_openai_alone(closed: str) -> None:
    openai, token = f"{closed}/endpoints/a/openai/v1/chat/completions", sagemaker_token(SECRET)
    opened = plain_http.post(openai, content=b"{}", headers={"Authorization": token}, timeout=WAIT_S)
    assert (opened.json()["served_by"], opened.headers["x-caller"]) == ("gateway", KEY)
    forged = plain_http.post(
        openai, content=b"{}", headers={"Authorization": sagemaker_token("guessed")}, timeout=WAIT_S
    )
    assert forged.status_code == 401
    elsewhere = plain_http.post(
        f"{closed}/endpoints/a/invocations", content=b"{}", headers={"Authorization": token}, timeout=WAIT_S
    )
    assert 400 <= elsewhere.status_code < 500


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/", "POST", TARGET),
        ("/", "POST", FORM),
        ("/endpoints/a/invocations", "POST", {}),
        ("/bucket/key", "GET", {}),
        ("/metrics", "GET", {}),
        ("/console/api/rates", "GET", {}),
    ],
)
def test_without_a_key_every_request_is_refused(closed: str, path: str, method: str, headers: dict[str, str]) -> None:
    body = b"Action=GetCallerIdentity" if headers is FORM else b""
    for more in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "AWS4-HMAC-SHA256 nonsense"}):
        response = plain_http.request(method, closed + path, headers={**headers, **more}, content=body, timeout=WAIT_S)
        assert 400 <= response.status_code < 500, response.text
        assert "served_by" not in response.text


def test_health_and_the_page_of_the_console_need_no_key(closed: str) -> None:
    assert plain_http.get(f"{closed}/health", timeout=WAIT_S).status_code == 200
    assert plain_http.get(f"{closed}/console", timeout=WAIT_S).json()["served_by"] == "console"


def test_a_wrong_secret_and_a_changed_body_are_refused(closed: str) -> None:
    assert signed(closed, "sagemaker", body=b"{}", secret="wrong", **TARGET).status_code in (400, 403)
    request = AWSRequest("POST", closed + "/", data=b"{}", headers=TARGET)
    SigV4Auth(Credentials(KEY, SECRET), "sagemaker", "us-east-1").add_auth(request)
    changed = plain_http.post(closed, content=b"[]", headers=dict(request.headers.items()), timeout=WAIT_S)
    assert changed.status_code in (400, 403)


@pytest.mark.parametrize("path", ["/bucket/key", "/bucket", "/", "/v1x", "/metrics", "/endpoints/a/invocations"])
def test_a_refusal_cannot_be_loaded_by_a_page_of_another_site(closed: str, path: str) -> None:
    refused = plain_http.get(closed + path, timeout=WAIT_S)
    assert refused.status_code in (400, 403)
    assert refused.headers["cross-origin-resource-policy"] == "same-origin"
    assert refused.headers["x-content-type-options"] == "nosniff"


def test_boto3_reads_the_refusals(closed: str) -> None:
    config = Config(retries={"total_max_attempts": 1})
    for service, call in (
        ("sagemaker", lambda client: client.list_models()),
        ("sagemaker-runtime", lambda client: client.invoke_endpoint(EndpointName="a", Body=b"")),
        ("s3", lambda client: client.list_buckets()),
        ("sts", lambda client: client.get_caller_identity()),
        ("cloudwatch", lambda client: client.list_metrics()),
    ):
        client = boto3.client(
            service,
            endpoint_url=closed,
            region_name="us-east-1",
            aws_access_key_id="UNKNOWN",
            aws_secret_access_key="no",
            config=config,
        )
        with pytest.raises(ClientError) as caught:
            call(client)
        assert caught.value.response["Error"]["Code"] in (
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
        )
        client.close()


def test_a_signature_for_another_service_does_not_open_cloudwatch(closed: str) -> None:
    response = signed(closed, "sagemaker", path=LIST_METRICS, body=b"\xa0", **CBOR)

    assert response.status_code == 400
    assert response.headers["smithy-protocol"] == "rpc-v2-cbor"
    assert b"Credential should be scoped to correct service" in response.content


def test_a_body_that_is_too_large_is_refused_before_it_is_buffered(closed: str) -> None:
    response = signed(closed, "sagemaker", body=b"x" * (26 * 1024 * 1024), **TARGET)
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("service", "path", "headers", "said"),
    [
        ("sagemaker", "/", TARGET, '"__type":"ServiceUnavailable"'),
        ("sts", "/", FORM, "<Code>ServiceUnavailable</Code>"),
        ("s3", "/bucket/key", {}, "<Code>ServiceUnavailable</Code>"),
        ("sagemaker", "/endpoints/a/invocations", {}, "out of reach"),
        ("sagemaker", "/console/api/rates", {}, "out of reach"),
        ("sagemaker", "/v1/chat/completions", {}, '"type":"server_error"'),
        ("sagemaker", "/v1/messages", {}, '"type":"error"'),
    ],
)
def test_keys_that_cannot_be_checked_are_answered_503_in_the_format_of_the_client(
    service: str, path: str, headers: dict[str, str], said: str
) -> None:
    with platform(is_open=False, is_reachable=False) as url:
        answer = signed(url, service, path=path, body=b"Action=GetCallerIdentity", **headers)
        assert (answer.status_code, said in answer.text) == (503, True), answer.text
        unsigned = plain_http.post(url + path, headers={**headers, "Authorization": f"Bearer {SECRET}"}, content=b"")
        assert (unsigned.status_code, said in unsigned.text) == (503, True), unsigned.text
        assert plain_http.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [("/", TARGET, "ThrottlingException"), ("/v1/chat/completions", {}, "rate_limit_exceeded")],
)
def test_signed_bodies_count_against_the_budget_of_all_bodies(path: str, headers: dict[str, str], code: str) -> None:
    with platform(is_open=False, max_bytes=100_000) as url:
        fits = signed(url, "sagemaker", path=path, body=b"x" * (FREE_BYTES + 90_000), **headers)
        spent = signed(url, "sagemaker", path=path, body=b"x" * (FREE_BYTES + 110_000), **headers)
        after = signed(url, "sagemaker", path=path, body=b"x" * (FREE_BYTES + 90_000), **headers)
    assert [fits.status_code, spent.status_code, after.status_code] == [200, 429, 200]
    assert code in spent.text


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_a_platform_that_a_newer_one_has_joined_tells_load_balancers_to_leave(path: str) -> None:
    with platform(is_open=True, is_outdated=True) as url:
        answer = plain_http.get(f"{url}{path}", trust_env=False)
        assert (answer.status_code, answer.json()["status"]) == (503, "outdated")
        assert "Replace this one" in answer.json()["reason"]
        served = plain_http.post(f"{url}/endpoints/e/invocations", content=b"{}", trust_env=False)
        assert served.json()["served_by"] == "gateway"
