"""Platform commands without a platform: their pure parts, and their error messages."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws import services, validation
from headrace.tools.cli.api_key import api_key_for
from headrace.tools.cli.deploy import container_of, endpoint_name
from headrace.tools.cli.endpoints import cause_first, failure_text, notes_of, reason_rows, stage_of, variant_rows
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.invoke import answer_message
from headrace.tools.cli.invoke_body import request_body
from headrace.tools.cli.scale import change_note
from headrace.tools.cli.tables import age, labelled, table, wrapped


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0-6B"),
        ("/models/my llama/", "my-llama"),
        ("./SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M-Q4-1"),
        ("s3://bucket/prefix/model.tar.gz", "model"),
        ("日本", "model"),
    ],
)
def test_an_endpoint_is_named_after_its_model(model: str, name: str) -> None:
    assert endpoint_name(model) == name


@given(st.text(min_size=1))
def test_every_name_is_one_that_aws_allows(model: str) -> None:
    operation = services.operation("sagemaker", "CreateModel")
    validation.check(
        operation, {"ModelName": endpoint_name(model), "ExecutionRoleArn": "arn:aws:iam::000000000000:role/r"}
    )


def test_a_model_becomes_a_container(tmp_path: Path) -> None:
    image = "image"
    assert container_of("smollm2", {"A": "b"}, image)["Environment"] == {"HF_MODEL_ID": "smollm2", "A": "b"}
    assert container_of(str(tmp_path), {}, image)["Environment"] == {"HF_MODEL_ID": str(tmp_path)}
    assert container_of("s3://b/m.tar.gz", {}, image)["ModelDataUrl"] == "s3://b/m.tar.gz"
    prefix = container_of("s3://b/folder", {}, image)["ModelDataSource"]["S3DataSource"]
    assert prefix == {"S3Uri": "s3://b/folder/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def test_a_local_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert container_of("model", {}, "i")["Environment"]["HF_MODEL_ID"] == str(tmp_path / "model")


def test_the_progress_of_an_endpoint_fits_into_a_line() -> None:
    variant = {
        "VariantName": "AllTraffic",
        "CurrentInstanceCount": 0,
        "DesiredInstanceCount": 2,
        "VariantStatus": [{"Status": "Creating", "StatusMessage": "Loading the model."}],
    }
    seen = {"EndpointStatus": "Creating", "ProductionVariants": [variant]}
    assert stage_of(seen) == "Creating, Loading the model, 0 of 2 ready"
    assert stage_of({"EndpointStatus": "Creating"}) == "Creating"


def test_notes_of_a_variant_are_apart_from_its_state() -> None:
    message = "w runs on GPU 0.\nw2 waits for memory.\nNote: A.\nNote: B."
    variant = {"VariantName": "v", "VariantStatus": [{"Status": "ActivatingTraffic", "StatusMessage": message}]}
    endpoint = {"EndpointStatus": "InService", "ProductionVariants": [variant, variant]}
    rows = variant_rows(variant, is_in_service=True)
    assert rows[-2:] == [("  where", "w runs on GPU 0."), ("", "w2 waits for memory.")]
    assert ("  status", "ActivatingTraffic") in variant_rows(variant, is_in_service=False)
    assert stage_of(endpoint) == "InService, w runs on GPU 0, w2 waits for memory"
    assert notes_of(endpoint) == ["A.", "B."]


def test_ages_and_tables_are_short() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ages = [age(now - timedelta(seconds=seconds), now) for seconds in (-5, 5, 65, 7300, 200_000)]
    assert ages == ["0s", "5s", "1m", "2h", "2d"]
    assert table([("A", "B"), ("long", "x")]) == "A     B\nlong  x"
    assert labelled([("name", "a"), ("reason", ""), ("copies", 0)]) == "name    a\ncopies  0"


def test_a_message_is_wrapped_between_words_on_a_terminal_but_not_within_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    text = "There is none. `headrace ls --json` lists them, a-b-c-d-e-f."
    assert wrapped(text, stream=terminal).splitlines() == [
        "There is none.",
        "`headrace ls --json` lists",
        "them, a-b-c-d-e-f.",
    ]
    assert wrapped(text, stream=SimpleNamespace(isatty=lambda: False)) == text


def test_a_prompt_becomes_a_request() -> None:
    body = json.loads(request_body(b"The sea", ("max_new_tokens=5", "stop=end"), is_streamed=True))
    parameters = {"return_full_text": False, "max_new_tokens": 5, "stop": "end"}
    assert body == {"inputs": "The sea", "parameters": parameters, "stream": True}
    assert request_body(b'{"inputs": 1}', (), is_streamed=True) == b'{"inputs": 1}'
    assert json.loads(request_body(b"[1]", (), is_streamed=False))["inputs"] == "[1]"


def test_a_body_of_a_type_is_sent_unchanged() -> None:
    assert request_body(b"\x93NUMPY", (), is_streamed=False, content_type="application/x-npy") == b"\x93NUMPY"
    with pytest.raises(UserFailed, match="-n, -t and --parameter have no effect with --content-type"):
        request_body(b"1,2", ("a=1",), is_streamed=False, content_type="text/csv")


@pytest.mark.parametrize("prompt", ["{", '{"messages": [}', " {'inputs': 'a'}", '{"a": 1,}'])
def test_what_looks_like_json_and_is_none_is_refused(prompt: str) -> None:
    with pytest.raises(UserFailed, match=r"PROMPT looks like a JSON object, but it is not JSON: .* --completion sends"):
        request_body(prompt.encode(), (), is_streamed=False)
    assert json.loads(request_body(prompt.encode(), (), is_streamed=False, is_completion=True))["inputs"] == prompt


def test_a_text_may_begin_with_a_brace() -> None:
    assert json.loads(request_body(b"{ return 0; }", (), is_streamed=False))["inputs"] == "{ return 0; }"


def test_the_cause_of_a_failure_comes_before_the_log() -> None:
    opening = "The container did not pass the ping health check. Please check CloudWatch logs. Reason: "
    log = "\nIts log (/aws/sagemaker/Endpoints/chat, stream a/b) ends with:\n"
    assert cause_first(f"{opening}It is torn.{log}starting\nError: It is torn.") == "It is torn."
    assert cause_first(f"{opening}It ended.{log}one\ntwo") == "It ended.\nIts log ends with:\n  one\n  two"
    assert cause_first("There is no room.") == "There is no room."
    assert cause_first("") == "no reason given"
    assert failure_text("chat", "Failed", "There is no room.", "") == "chat is Failed: There is no room."
    assert "\n`headrace logs chat --url http://h` shows" in failure_text("chat", "Failed", log, " --url http://h")
    assert reason_rows(f"{opening}It ended.{log}one")[1:] == [("", "Its log ends with:"), ("", "  one")]


def test_new_bounds_say_what_changes_at_once() -> None:
    copies = {"ScalableDimension": "sagemaker:inference-component:DesiredCopyCount"}
    workers = {"ScalableDimension": "sagemaker:variant:DesiredInstanceCount"}
    assert change_note(copies, 1, minimum=3, maximum=4) == "2 more copies will start, as far as the platform has room."
    assert change_note(workers, 3, minimum=0, maximum=2) == "1 worker of 3 will end."
    assert change_note(workers, 1, minimum=1, maximum=2) == ""


def test_the_message_of_a_model_is_found_in_its_answer() -> None:
    assert answer_message('{"error": {"message": "too long", "code": 1}}') == "too long"
    assert answer_message('{"error": "too long", "error_type": "validation"}') == "too long"
    assert answer_message('{"detail": "too long"}') == "too long"
    assert answer_message("torn") == "torn"
    assert answer_message("[1]") == "[1]"


def test_a_platform_of_this_shell_gets_its_secret() -> None:
    shell = {"AWS_ENDPOINT_URL": "http://127.0.0.1:7450/", "AWS_SECRET_ACCESS_KEY": "s"}
    assert api_key_for("http://127.0.0.1:7450", None, shell) == "s"
    assert api_key_for("http://127.0.0.1:7450/endpoints/chat", None, shell) == "s"
    assert api_key_for("http://127.0.0.1:7450", "given", shell) == "given"
    assert api_key_for("http://127.0.0.1:74501", None, shell) is None
    assert api_key_for("http://127.0.0.1:7450", None, {}) is None


@pytest.mark.parametrize("parameters", [("a",), ("=b",)])
def test_a_parameter_without_a_name_or_value_is_refused(parameters: tuple[str, ...]) -> None:
    with pytest.raises(UserFailed, match="NAME=VALUE"):
        request_body(b"text", parameters, is_streamed=False)
    with pytest.raises(UserFailed, match="have no effect on a JSON prompt"):
        request_body(b"{}", parameters, is_streamed=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("status",),
        ("env",),
        ("describe", "a"),
        ("rm", "a"),
        ("logs", "a"),
        ("scale", "a", "--describe"),
        ("invoke", "a", "b"),
        ("deploy", "smollm2"),
    ],
)
def test_without_a_platform_the_error_is_one_sentence(headrace, arguments: tuple[str, ...], tmp_path: Path) -> None:
    env = dict.fromkeys(name for name in os.environ if name.startswith("AWS_"))
    result = headrace(*arguments, "--url", "http://127.0.0.1:9", env={**env, "HEADRACE_UP_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "No platform is running at http://127.0.0.1:9" in result.stderr
    assert "headrace up" in result.stderr


@pytest.fixture
def default_platform(tmp_path: Path) -> Iterator[dict[str, str | None]]:
    """The environment of a shell without a platform, on whose default port something answers /health as one does."""
    with health_server() as port:
        env = dict.fromkeys(name for name in os.environ if name.startswith(("AWS_", "HEADRACE_UP_")))
        yield {**env, "XDG_DATA_HOME": str(tmp_path), "HEADRACE_UP_PORT": str(port)}


@contextmanager
def health_server() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                b'{"service": "headrace", "status": "ok", "uptime_s": 65, "asks_for_keys": true, "machines": '
                b'[{"name": "10.0.0.1:7450", "leads": true}, {"name": "10.0.0.2:7450", "leads": false}]}'
            )

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_guessed_platform_is_named_once_on_stderr(headrace, default_platform) -> None:
    result = headrace("status", env=default_platform)
    url = f"http://127.0.0.1:{default_platform['HEADRACE_UP_PORT']}"
    assert result.stderr == f"Using the platform at {url}, the default address; --url names another.\n"
    assert [line.split(maxsplit=1) for line in result.stdout.splitlines()] == [
        ["url", url],
        ["console", f"{url}/console"],
        ["status", "ok"],
        ["uptime", "1m"],
        ["keys", "required"],
        ["machines", "10.0.0.1:7450 (leads), 10.0.0.2:7450"],
    ]
    assert headrace("status", "--url", url, env=default_platform).stderr == ""


def test_nothing_is_deleted_on_a_guessed_platform_without_a_yes(headrace, default_platform) -> None:
    refused = headrace("rm", "chat", env=default_platform)
    assert refused.exit_code == 2
    assert "Nothing names the platform of chat. Add --url http://127.0.0.1:" in refused.stderr
    assert "or --yes." in refused.stderr


@pytest.mark.parametrize(("answer", "is_sent"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_rm_asks_on_a_terminal_before_it_deletes_on_a_guessed_platform(
    headrace, default_platform, monkeypatch: pytest.MonkeyPatch, answer: str, is_sent: bool
) -> None:
    monkeypatch.setattr("headrace.tools.cli.removal.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    result = headrace("rm", "chat", "code", env=default_platform, stdin=answer)
    url = f"http://127.0.0.1:{default_platform['HEADRACE_UP_PORT']}"
    assert f"Delete chat, code on {url}? [y/N]:" in result.stderr
    assert result.exit_code == 1
    assert ("Aborted!" in result.stderr) is not is_sent
    assert ("answered DescribeEndpoint with HTTP 501" in result.stderr) is is_sent


@pytest.mark.parametrize("url", ["chat", "localhost:7450", "http://", "http://a:x", "ftp://a"])
def test_an_address_that_is_no_url_is_refused(headrace, url: str) -> None:
    refused = headrace("ls", "--url", url)
    assert refused.exit_code == 2
    assert f"--url is {url!r}; expected the URL of a platform such as http://127.0.0.1:7450." in refused.stderr


def test_env_unset_works_without_a_platform(headrace) -> None:
    result = headrace("env", "--unset", env={"_HEADRACE_ENV": "AWS_REGION", "_HEADRACE_OLD_AWS_REGION": "x"})
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == 'export AWS_REGION="$_HEADRACE_OLD_AWS_REGION"'


def test_env_finds_the_platform_and_the_keys_of_a_data_folder(headrace, tmp_path: Path) -> None:
    env = dict.fromkeys(name for name in os.environ if name.startswith("AWS_"))
    refused = headrace("env", "--data-dir", tmp_path, env=env)
    assert refused.exit_code == 2
    assert f"`headrace up --data-dir {tmp_path}` starts one." in refused.stderr
    made = headrace("keys", "create", "--data-dir", tmp_path).stdout.splitlines()[0].partition("=")[2]
    with health_server() as port:
        (tmp_path / "running.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
        printed = headrace("env", "--data-dir", tmp_path, "--region", "us-east-1", env=env)
    assert printed.exit_code == 0, printed.stderr
    assert f"AWS_ENDPOINT_URL=http://127.0.0.1:{port}\n" in printed.stdout
    assert f"AWS_ACCESS_KEY_ID={made}\n" in printed.stdout


def test_env_warns_of_an_aws_cli_that_ignores_the_endpoint(headrace, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.touch(0o755)
    (tmp_path / "lib" / "python3" / "dist-packages" / "awscli-2.9.19.dist-info").mkdir(parents=True)
    with health_server() as port:
        url = f"http://127.0.0.1:{port}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        printed = headrace("env", "--url", url, "--region", "us-east-1", env={"PATH": str(program.parent), **keys})
    assert printed.exit_code == 0, printed.stderr
    assert f"AWS CLI 2.9 ignores AWS_ENDPOINT_URL and would call AWS. Add `--endpoint-url {url}`" in printed.stderr


def test_keys_are_made_listed_and_removed(headrace, tmp_path: Path) -> None:
    made = headrace("keys", "create", "--data-dir", tmp_path, "--note", "for CI")
    lines = dict(line.split("=", 1) for line in made.stdout.splitlines())
    listed = headrace("keys", "ls", "--data-dir", tmp_path)
    (row,) = json.loads(headrace("keys", "ls", "--data-dir", tmp_path, "--json").stdout)
    assert (row["key"], row["note"]) == (lines["AWS_ACCESS_KEY_ID"], "for CI")
    assert lines["AWS_ACCESS_KEY_ID"] in listed.stdout
    assert "for CI" in listed.stdout
    assert lines["AWS_SECRET_ACCESS_KEY"] not in listed.stdout + listed.stderr
    key = lines["AWS_ACCESS_KEY_ID"]
    limited = headrace("keys", "limit", key, "--model", "chat-*", "--max-in-flight", 4, "--data-dir", tmp_path)
    assert limited.stdout == f"{key}: models chat-*; 4 in flight.\n"
    assert "models chat-*" in headrace("keys", "ls", "--data-dir", tmp_path).stdout
    (row,) = json.loads(headrace("keys", "ls", "--data-dir", tmp_path, "--json").stdout)
    assert row["limits"] == {"models": ["chat-*"], "max_in_flight": 4}
    for wrong in (["--action", "fly"], [], ["--none", "--model", "a"], ["--requests-per-minute", 0]):
        assert headrace("keys", "limit", key, *wrong, "--data-dir", tmp_path).exit_code == 2
    assert headrace("keys", "limit", "HRAKNONE", "--none", "--data-dir", tmp_path).exit_code == 2
    assert "no limits" in headrace("keys", "limit", key, "--none", "--data-dir", tmp_path).stdout
    kept = headrace("keys", "rm", lines["AWS_ACCESS_KEY_ID"], "--data-dir", tmp_path)
    assert (kept.exit_code, "--last" in kept.stderr) == (2, True)
    assert headrace("keys", "rm", lines["AWS_ACCESS_KEY_ID"], "--last", "--data-dir", tmp_path).exit_code == 0
    gone = headrace("keys", "rm", lines["AWS_ACCESS_KEY_ID"], "--data-dir", tmp_path)
    assert gone.exit_code == 2
    assert "headrace keys ls" in gone.stderr


def test_the_worker_command_exists_but_is_not_listed(headrace) -> None:
    assert "\n  worker " not in headrace("--help").stdout
    assert headrace("worker", "--help").exit_code == 0
