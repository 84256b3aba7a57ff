"""The routes that do not generate, the key, the log line and the metrics."""

import codecs
import gzip
import json
import re

import pytest

from headrace.testing.echo import EchoBackend
from tests.serving.wire.test_unknown_routes import FOREIGN, message_of

from .conftest import serving

ASK = {"inputs": "one two three", "parameters": {"max_new_tokens": 2}}


def test_ping_is_503_while_loading_200_when_ready_and_503_when_closing():
    backend = EchoBackend()
    with serving(backend, ready=False) as echo:
        loading = echo.client.get("/ping")
        refused = echo.post("/generate", ASK)
        health = echo.client.get("/health")
        echo.service.attach(backend)
        ready = echo.client.get("/ping")
        answered = echo.post("/generate", ASK)
        echo.service.close()
        closing = echo.client.get("/ping")
        late = echo.post("/v1/completions", {"prompt": "a"})
    assert (loading.status_code, loading.json()["status"]) == (503, "Loading")
    assert (refused.status_code, "still loading" in refused.json()["error"]) == (503, True)
    unhealthy = {"error": "unhealthy: The model is still loading.", "error_type": "healthcheck"}
    assert (health.status_code, health.json()) == (503, unhealthy)
    assert "reason" not in ready.json()
    assert closing.json()["reason"] == "The server is shutting down."
    assert (ready.status_code, ready.json()) == (200, {"status": "Healthy", "model": "echo"})
    assert answered.status_code == 200
    assert (closing.status_code, closing.json()["status"]) == (503, "Closing")
    assert (late.status_code, "shutting down" in late.json()["error"]["message"]) == (503, True)


def test_health_checks_fail_when_the_engine_cannot_go_on(echo):
    echo.backend.is_healthy = False

    ping, health = echo.client.get("/ping"), echo.client.get("/health")

    assert (ping.status_code, ping.json()["status"]) == (503, "Failed")
    assert health.status_code == 503


def test_root_is_a_page_for_a_browser_and_tgis_health_for_a_program(echo):
    page = echo.client.get("/", headers={"accept": "text/html,application/xhtml+xml"})
    health = echo.client.get("/")
    assert "<title>Headrace</title>" in page.text
    assert (health.status_code, health.content) == (200, b"")


def test_the_page_may_load_nothing_from_elsewhere(echo):
    page = echo.client.get("/", headers={"accept": "text/html"})
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    for path in re.findall(r'(?:src|href)="(/web/[^"]+)"', page.text):
        assert echo.client.get(path).status_code == 200
    assert not re.findall(r'(?:src|href)="https?:', page.text)


def test_the_pages_scripts_never_write_html(echo):
    for name in ("chat.js", "markdown.js"):
        script = echo.client.get(f"/web/{name}")
        assert script.headers["content-type"].startswith("text/javascript")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script.text)


def test_the_page_can_be_turned_off():
    with serving(web=False, metrics=False) as echo:
        assert echo.client.get("/", headers={"accept": "text/html"}).content == b""
        assert echo.client.get("/web/chat.js").status_code == 404
        assert echo.client.get("/metrics").status_code == 404


def test_info_says_what_is_served_and_the_limits():
    with serving(max_concurrent_requests=9, max_best_of=3) as echo:
        info = echo.client.get("/info").json()
    assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == ("echo", 511, 512)
    assert (info["max_concurrent_requests"], info["max_best_of"]) == (9, 3)


def test_tokenize_gives_ids_and_the_characters_they_cover(echo):
    spans = echo.post("/tokenize", {"inputs": "one two"}).json()
    chat = echo.post("/chat_tokenize", {"messages": [{"role": "user", "content": "one"}]}).json()
    assert [(span["text"], span["start"], span["stop"]) for span in spans] == [("one", 0, 3), (" two", 3, 7)]
    assert chat["templated_text"] == "user: one\nassistant:"
    assert len(chat["tokenize_response"]) == 3
    assert echo.post("/tokenize", {"inputs": 7}).status_code == 422
    assert echo.post("/chat_tokenize", {"messages": 7}).status_code == 422


def test_models_are_listed_and_described(echo):
    listed = echo.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["echo"]
    assert echo.client.get("/v1/models/echo").json() == listed["data"][0]
    missing = echo.client.get("/v1/models/other/name")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/models/other", 404, "not_found_error"),
        ("/v1/models/", 404, "not_found_error"),
        ("/v1/messages", 405, "invalid_request_error"),
        ("/v1/skills", 404, "not_found_error"),
    ],
)
def test_errors_for_anthropics_clients_have_their_form_on_any_path(echo, path, status, kind):
    answer = echo.client.get(path, headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)


def test_a_path_or_method_that_is_not_served_says_what_is(echo):
    lost = echo.client.get("/nowhere")
    wrong = echo.client.get("/generate")
    openai = echo.client.get("/v1/nothing")
    assert (lost.status_code, "/invocations" in lost.json()["error"]) == (404, True)
    assert (wrong.status_code, wrong.json()["error"]) == (405, "GET /generate is not served; use POST.")
    assert wrong.headers["allow"] == "POST"
    assert (openai.status_code, openai.json()["error"]["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize(("method", "path", "form", "said"), FOREIGN)
def test_clients_of_other_servers_are_told_what_to_use(echo, method, path, form, said):
    answer = echo.client.request(method, path, json={"model": "echo"} if method == "POST" else None)
    assert answer.status_code == 404
    assert said in message_of(form, answer.content)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow", "said"),
    [
        ("GET", "/v1/chat/completions", 405, "POST", "use POST."),
        ("DELETE", "/v1/models/echo", 405, "GET, HEAD", "use GET or HEAD."),
        ("POST", "/v1/chat/completions/", 404, None, "Did you mean POST /v1/chat/completions?"),
        ("POST", "/v1/chat/completion", 404, None, "Did you mean POST /v1/chat/completions?"),
        ("GET", "/v1/models/", 404, None, "Did you mean GET /v1/models?"),
    ],
)
def test_slips_in_openais_routes_name_the_right_one(echo, method, path, status, allow, said):
    answer = echo.client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert said in answer.json()["error"]["message"]


def test_a_websocket_is_refused_by_426(echo):
    answer = echo.client.get("/v1/responses", headers={"connection": "Upgrade", "upgrade": "websocket"})
    assert (answer.status_code, answer.headers["allow"]) == (426, "POST")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic s3cret", "s3cret", "Bearer s3cret2"])
def test_without_the_key_nothing_but_health_and_the_page_is_served(header):
    headers = {} if header is None else {"authorization": header}
    with serving(api_key="s3cret") as echo:
        assert echo.client.get("/ping", headers=headers).status_code == 200
        assert echo.client.get("/health", headers=headers).status_code == 200
        assert echo.client.get("/", headers={**headers, "accept": "text/html"}).status_code == 200
        for path in ("/metrics", "/info", "/v1/models"):
            assert echo.client.get(path, headers=headers).status_code == 401
        refused = echo.post("/v1/completions", {"prompt": "a"}, headers=headers)
        native = echo.post("/invocations", ASK, headers=headers)
        assert echo.backend.requests == []
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert native.json()["error_type"] == "unauthorized"


def test_the_key_opens_the_server_and_is_never_logged():
    with serving(api_key="s3cret") as echo:
        answer = echo.post("/invocations", ASK, headers={"authorization": "bearer s3cret"})
        log = echo.log.getvalue()
    assert answer.status_code == 200
    assert "s3cret" not in log


def test_other_origins_are_let_in_only_when_the_settings_say_so():
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with serving() as echo:
        assert "access-control-allow-origin" not in echo.client.options("/v1/completions", headers=ask).headers
    with serving(cors_allow_origins=("https://a.example",), api_key="k") as echo:
        allowed = echo.client.options("/v1/completions", headers=ask)
        other = echo.client.options("/v1/completions", headers={**ask, "origin": "https://b.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in other.headers


def test_a_request_is_one_line_in_the_log_without_its_text(echo):
    echo.post("/generate", {"inputs": "my private words", "parameters": {"max_new_tokens": 2}})
    (record,) = echo.records(1)
    assert record["status"] == 200
    assert (record["route"], record["dialect"], record["stream"]) == ("/generate", "tgi-3", False)
    assert (record["prompt_tokens"], record["output_tokens"], record["cached_tokens"]) == (3, 2, 0)
    assert (record["finish"], record["level"]) == ("length", "info")
    assert record["total_ms"] >= record["ttft_ms"] > 0
    assert len(record["request_id"]) == 32
    assert "private" not in echo.log.getvalue()


def test_a_refused_request_says_why_in_the_log(echo):
    echo.post("/generate", {"inputs": ""})
    (record,) = echo.records(1)
    assert (record["status"], record["error"], record["level"]) == (422, "invalid_request", "warning")
    assert "empty" in record["message"]


def test_prompts_are_logged_only_when_asked_for():
    with serving(log_prompts=True) as echo:
        echo.post("/generate", ASK)
        (record,) = echo.records(1)
    assert record["prompts"] == ["one two three"]
    assert record["answer"] == "one two"


def test_fields_without_effect_are_named_in_the_log(echo):
    echo.post("/v1/completions", {"prompt": "a", "suffix_of_mine": 1})
    (record,) = echo.records(1)
    assert record["ignored_fields"] == ["suffix_of_mine"]


def value(metrics, name, **labels):
    """Sum of a metric over the rows that carry the labels."""
    rows = [line for line in metrics.splitlines() if re.match(rf"{re.escape(name)}[ {{]", line)]
    wanted = [f'{key}="{text}"' for key, text in labels.items()]
    assert rows, f"{name} is not among the metrics"
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows if all(want in row for want in wanted))


@pytest.mark.parametrize("encoding", ["gzip", "br", "Deflate", "zstd", "x" * 5000])
def test_a_compressed_body_is_refused_by_the_name_of_its_coding(echo, encoding):
    body = gzip.compress(json.dumps({"inputs": "a", "messages": [{"role": "user", "content": "a"}]}).encode())
    headers = {"content-type": "application/json", "content-encoding": encoding}
    for path in ("/generate", "/invocations", "/v1/chat/completions", "/v1/messages", "/api/chat", "/tokenize"):
        answer = echo.client.post(path, content=body, headers=headers)
        assert answer.status_code == 415, path
        assert encoding[:100] in answer.text
    plain = echo.client.post("/generate", json={"inputs": "a"}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_json_may_begin_with_a_byte_order_mark(echo):
    messages = [{"role": "user", "content": "a"}]
    bodies = {
        "/generate": {"inputs": "a"},
        "/invocations": {"inputs": "a"},
        "/v1/chat/completions": {"model": "echo", "messages": messages},
        "/v1/responses": {"model": "echo", "input": "a"},
        "/v1/messages": {"model": "echo", "messages": messages, "max_tokens": 3},
        "/v1/messages/count_tokens": {"model": "echo", "messages": messages},
        "/api/chat": {"model": "echo", "messages": messages},
        "/tokenize": {"inputs": "a"},
    }
    for path, body in bodies.items():
        answer = echo.client.post(path, content=codecs.BOM_UTF8 + json.dumps(body).encode())
        assert answer.status_code == 200, (path, answer.text)


def test_metrics_count_requests_tokens_and_failures():
    with serving() as echo:
        echo.post("/generate", ASK)
        echo.post("/v1/completions", {"prompt": "a b c d", "stream": True})
        echo.post("/generate", {"inputs": ""})
        echo.records(3)
        text = echo.client.get("/metrics").text
    assert value(text, "headrace_requests_total", dialect="tgi-3", status="200") == 1
    assert value(text, "headrace_requests_total", dialect="tgi-3", status="422") == 1
    assert value(text, "tgi_request_count_total") == 3
    assert value(text, "tgi_request_success_total") == 2
    assert value(text, "tgi_request_failure_total", err="validation") == 1
    assert value(text, "headrace_output_tokens_total") == value(text, "vllm:generation_tokens_total") == 2 + 5
    assert value(text, "headrace_ttft_seconds_count") == value(text, "vllm:time_to_first_token_seconds_count") == 2
    assert value(text, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(text, "tgi_request_generated_tokens_sum") == 7
    assert value(text, "headrace_running_sequences") == value(text, "vllm:num_requests_running") == 0
    assert value(text, "headrace_kv_blocks_free") == value(text, "headrace_kv_blocks") == 64


def test_metrics_are_served_while_the_model_loads():
    with serving(ready=False) as echo:
        assert value(echo.client.get("/metrics").text, "headrace_kv_blocks") == 0
