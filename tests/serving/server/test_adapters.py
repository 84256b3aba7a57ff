"""Adapters over HTTP: chosen by the names of each dialect, listed, loaded and unloaded, and refused by name."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.errors import Forbidden, InvalidRequest
from headrace.serving.server.adapter_routes import allowed_folders, checked_folder
from headrace.serving.settings.server_settings import ServerSettings

from .conftest import serving


@pytest.fixture
def served(tmp_path):
    """Serve a model with the adapters a and b, and folders for more."""
    for name in ("c", "d"):
        (tmp_path / "allowed" / name).mkdir(parents=True)
    options = {
        "enable_lora": True,
        "allow_runtime_lora_updating": True,
        "adapter_folders": (str(tmp_path / "allowed"),),
    }
    with serving(**options) as echo:
        for name in ("a", "b"):
            echo.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(tmp_path / "allowed" / "c")})
        echo.folder = tmp_path / "allowed"
        yield echo


def used(echo):
    return echo.backend.requests[-1].adapter


GENERATE = {"inputs": "one two", "parameters": {"max_new_tokens": 2}}


def test_openai_clients_choose_an_adapter_by_model(served):
    import openai

    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="a", messages=[{"role": "user", "content": "hi"}])
    assert (answer.model, used(served)) == ("a", "a")
    assert client.completions.create(model="b", prompt="hi").model == "b"
    assert used(served) == "b"
    assert client.completions.create(model="echo", prompt="hi").model == "echo"
    assert used(served) is None
    with pytest.raises(openai.NotFoundError, match=r"`nope` does not exist\. Served here: `echo`, `a`, `b`"):
        client.completions.create(model="nope", prompt="hi")
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["echo", "a", "b"]
    assert (models["a"].parent, models["echo"].parent) == ("echo", None)
    assert client.models.retrieve("b").id == "b"


def test_tgi_and_lmi_choose_an_adapter_by_their_fields_the_query_or_the_header(served):
    parameters = {"max_new_tokens": 2, "adapter_id": "a"}
    assert served.post("/generate", {"inputs": "one two", "parameters": parameters}).status_code == 200
    assert used(served) == "a"
    assert served.post("/invocations?adapter=b", GENERATE).status_code == 200
    assert used(served) == "b"
    header = {"x-amzn-sagemaker-adapter-identifier": "a"}
    assert served.post("/invocations", GENERATE, headers=header).status_code == 200
    assert used(served) == "a"
    assert served.post("/invocations", {"prompt": "hi", "max_tokens": 2}, headers=header).status_code == 200
    assert used(served) == "a"
    conflict = served.post("/generate?adapter=b", {"inputs": "x", "parameters": parameters})
    assert (conflict.status_code, "expected one of them" in conflict.text) == (422, True)
    unknown = served.post("/generate", {"inputs": "x", "parameters": {"adapter_id": "nope"}})
    assert (unknown.status_code, "`nope` is not loaded" in unknown.text) == (404, True)


def test_lmi_names_adapters_in_the_body():
    with serving(dialect="lmi-17", enable_lora=True, allow_runtime_lora_updating=True, adapter_folders=("/",)) as echo:
        assert echo.client.post("/adapters", params={"name": "a", "src": "/x"}).status_code == 200
        assert echo.post("/invocations", GENERATE | {"adapters": "a"}).status_code == 200
        assert used(echo) == "a"
        refused = echo.post("/invocations", GENERATE | {"adapters": "b"})
        assert (refused.status_code, "`b` is not loaded" in refused.text) == (404, True)


def totals(echo, name):
    """Return the value of a metric by adapter."""
    page = text_string_to_metric_families(echo.client.get("/metrics").text)
    (family,) = (family for family in page if family.name == name)
    return {sample.labels["adapter"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


def test_requests_and_tokens_are_counted_by_loaded_adapter(served):
    assert totals(served, "headrace_adapter_requests") == {"a": 0, "b": 0}
    parameters = {"max_new_tokens": 2, "adapter_id": "a"}
    assert served.post("/generate", {"inputs": "one two", "parameters": parameters}).status_code == 200
    streamed = served.post("/v1/completions", {"model": "b", "prompt": ["one two three"] * 2, "n": 2, "stream": True})
    assert streamed.status_code == 200
    assert served.post("/generate", GENERATE).status_code == 200  # the base model
    assert served.post("/generate", {"inputs": "x", "parameters": {"adapter_id": "nope"}}).status_code == 404
    assert totals(served, "headrace_adapter_requests") == {"a": 1, "b": 2}
    prompt, output = totals(served, "headrace_adapter_prompt_tokens"), totals(served, "headrace_adapter_output_tokens")
    assert (prompt["b"], output["a"]) == (3 * prompt["a"], 2)
    served.post("/v1/unload_lora_adapter", {"lora_name": "b"})
    assert set(totals(served, "headrace_adapter_requests")) == {"a"}


def test_vllms_routes_load_and_unload(served):
    body = {"lora_name": "c", "lora_path": str(served.folder / "c")}
    loaded = served.post("/v1/load_lora_adapter", body)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'c' added successfully.")
    assert served.post("/v1/load_lora_adapter", body).status_code == 400
    assert served.post("/v1/load_lora_adapter", body | {"load_inplace": True}).status_code == 200
    unloaded = served.post("/v1/unload_lora_adapter", {"lora_name": "c"})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'c' removed successfully.")
    assert served.post("/v1/unload_lora_adapter", {"lora_name": "c"}).status_code == 404
    assert served.post("/v1/load_lora_adapter", {"lora_name": "c"}).status_code == 400
    assert served.post("/v1/load_lora_adapter", {"lora_name": "echo", "lora_path": "/x"}).status_code == 400


@pytest.mark.parametrize("prefix", ["", "/models/echo"])
def test_the_routes_of_lmi_and_sagemaker_load_list_update_and_unload(prefix, served):
    source = str(served.folder / "c")
    first = served.post(f"{prefix}/adapters", {"name": "c", "src": source, "preload": True, "pin": False})
    assert (first.status_code, first.json()) == (200, {"status": "Adapter c registered"})
    second = served.client.post(f"{prefix}/adapters", params={"name": "d", "src": f"file://{served.folder}/d"})
    assert second.json() == {"status": "Adapter d registered"}
    listed = served.client.get(f"{prefix}/adapters").json()["adapters"]
    assert [adapter["name"] for adapter in listed] == ["a", "b", "c", "d"]
    assert served.client.get(f"{prefix}/adapters/d").json() == [
        {"name": "d", "src": str(served.folder / "d"), "pin": True}
    ]
    updated = served.client.post(f"{prefix}/adapters/c/update", params={"src": str(served.folder / "d")})
    assert updated.json() == {"status": "Adapter c updated"}
    assert served.client.get(f"{prefix}/adapters/c").json()[0]["src"].endswith("/d")
    removed = served.client.delete(f"{prefix}/adapters/c")
    assert removed.json() == {"status": "Adapter c unregistered"}
    for missing in (
        served.client.get(f"{prefix}/adapters/c"),
        served.client.delete(f"{prefix}/adapters/c"),
        served.client.post(f"{prefix}/adapters/c/update", params={"src": source}),
    ):
        assert missing.status_code == 404
    assert served.post(f"{prefix}/adapters", {"name": "x"}).status_code in {400, 422}


@pytest.mark.parametrize("options", [{}, {"enable_lora": True}, {"allow_runtime_lora_updating": True}])
def test_adapters_are_not_changed_over_http_unless_the_settings_allow_it(options):
    with serving(adapter_folders=("/",), **options) as echo:
        body = {"lora_name": "a", "lora_path": "/tmp"}
        for refused in (
            echo.post("/v1/load_lora_adapter", body),
            echo.post("/v1/unload_lora_adapter", body),
            echo.post("/adapters", {"name": "a", "src": "/tmp"}),
            echo.client.delete("/adapters/a"),
        ):
            assert (refused.status_code, "--allow-runtime-lora-updating" in refused.text) == (403, True)
        assert echo.client.get("/adapters").json() == {"adapters": []}


@pytest.mark.parametrize("source", ["/etc", "../secret", "{allowed}/../secret", "file:///etc", "{allowed}/link", "~"])
def test_folders_outside_the_allowed_ones_are_refused_whether_they_exist_or_not(source, tmp_path):
    allowed = tmp_path / "allowed"
    (allowed / "inside").mkdir(parents=True)
    (allowed / "link").symlink_to("/etc")
    with pytest.raises(Forbidden, match="adapter_folders"):
        checked_folder(source.format(allowed=allowed), [allowed])
    assert checked_folder(f"{allowed}/inside", [allowed]) == allowed / "inside"


def test_without_folders_in_the_settings_only_those_beside_the_model_are_allowed(tmp_path):
    assert allowed_folders(ServerSettings(model="smollm2")) == ()
    assert allowed_folders(ServerSettings(model=str(tmp_path))) == (tmp_path / "adapters",)


def test_any_model_name_is_accepted_where_no_adapter_can_be_meant(echo):
    answer = echo.post("/v1/completions", {"model": "anything", "prompt": "hi"})
    assert (answer.status_code, json.loads(answer.text)["model"]) == (200, "echo")


def test_a_platform_loads_and_unloads_by_location_without_the_setting_and_may_repeat_it(tmp_path):
    (tmp_path / "one").mkdir()
    asked = []

    def fetch(uri, _grant):
        asked.append(uri)
        if uri.endswith("missing"):
            raise InvalidRequest("There is nothing.", param="src")
        return tmp_path / "one"

    with serving(enable_lora=True, fetch_adapter=fetch) as echo:
        for _ in range(2):
            assert echo.post("/adapters", {"name": "a", "src": "s3://b/one"}).status_code == 200
        assert echo.post("/adapters", {"name": "b", "src": "s3://b/missing"}).status_code == 422
        assert asked == ["s3://b/one"] * 2 + ["s3://b/missing"]
        assert echo.post("/v1/load_lora_adapter", {"lora_name": "c", "lora_path": str(tmp_path)}).status_code == 403
        chat = {"model": "any", "messages": [{"role": "user", "content": "x"}]}
        answer = echo.client.post(
            "/v1/chat/completions", json=chat, headers={"X-Amzn-SageMaker-Adapter-Identifier": "a"}
        )
        assert answer.status_code == 200, answer.text
        assert used(echo) == "a"
        assert echo.client.delete("/adapters/a").status_code == 200
        assert echo.client.delete("/adapters/a").status_code == 404


def test_a_platform_is_told_how_to_make_slots_for_adapters(tmp_path):
    with serving(fetch_adapter=lambda *_: tmp_path) as echo:
        refused = echo.post("/adapters", {"name": "a", "src": "s3://b/one"})
        assert refused.status_code == 403
        assert "OPTION_ENABLE_LORA=true" in refused.text


def test_code_of_an_adapter_is_not_run_which_the_log_says(served):
    (served.folder / "d" / "model.py").write_text("@output_formatter\ndef f(output): ...")
    assert served.post(f"/adapters?name=e&src={served.folder / 'd'}").status_code == 200
    (line,) = [line for line in map(json.loads, served.log.getvalue().splitlines()) if line["level"] == "warning"]
    assert (line["event"], line["adapter"]) == ("adapter.code_ignored", "e")
