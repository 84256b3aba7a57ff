"""A server that trusts a checkpoint's code: the code reaches nothing outside, and the server serves."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import no_progress
from headrace.inference.backends.choice import BackendChoice
from headrace.inference.models.sources import Located
from headrace.serving.server import isolated, trusted_code
from headrace.serving.server.engine_config import load_engine
from headrace.serving.server.trusted_code import Event, Trusted, events_of, find_trusted, needs_isolation, run_isolated
from headrace.serving.settings.server_settings import ServerSettings
from tests.headrace_handler.hostile_site import HOSTILE, left_over, need_victims, place_for, reached, victim_in
from tests.inference.models.model_files import byte_level_tokenizer
from tests.waiting import WAIT_S

MARK = "outcomes of attacks: "
MODELING = """
import json, os, sys
from transformers import GPT2Config, GPT2LMHeadModel
from .hostile import attack
facts = json.loads({facts!r})
print({mark!r} + json.dumps(attack(facts)), json.dumps(dict(os.environ)), file=sys.stderr, sep="\\n", flush=True)

class OwnConfig(GPT2Config):
    model_type = "own"

class OwnForCausalLM(GPT2LMHeadModel):
    config_class = OwnConfig
"""
FORMATTER = """
import os
from djl_python.input_parser import input_formatter
assert "config.json" in os.listdir("/opt/ml/model")
@input_formatter
def read(payload, **kwargs):
    return {**payload, "max_tokens": 3}
"""
CONFIG = {
    "model_type": "own",
    "architectures": ["OwnForCausalLM"],
    "auto_map": {"AutoConfig": "modeling.OwnConfig", "AutoModelForCausalLM": "modeling.OwnForCausalLM"},
    "vocab_size": 320,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 128,
}
SHAPES = {
    "wte.weight": (320, 32),
    "wpe.weight": (128, 32),
    "h.0.ln_1.weight": (32,),
    "h.0.ln_1.bias": (32,),
    "h.0.attn.c_attn.weight": (32, 96),
    "h.0.attn.c_attn.bias": (96,),
    "h.0.attn.c_proj.weight": (32, 32),
    "h.0.attn.c_proj.bias": (32,),
    "h.0.ln_2.weight": (32,),
    "h.0.ln_2.bias": (32,),
    "h.0.mlp.c_fc.weight": (32, 128),
    "h.0.mlp.c_fc.bias": (128,),
    "h.0.mlp.c_proj.weight": (128, 32),
    "h.0.mlp.c_proj.bias": (32,),
    "ln_f.weight": (32,),
    "ln_f.bias": (32,),
}
KEY = "key-of-the-server"


def write_hostile(folder: Path, facts: dict[str, str]) -> None:
    """Write a checkpoint whose own code attacks when it is imported."""
    folder.mkdir()
    random = np.random.default_rng(0)
    weights = {f"transformer.{name}": random.normal(size=shape).astype("f4") for name, shape in SHAPES.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.py").write_text(FORMATTER)
    (folder / "weights").write_bytes(b"weights")
    (folder / "hostile.py").write_text(HOSTILE.read_text())
    given = json.dumps({**facts, "model": str(folder), "most_bytes": str(1 << 20), "most_processes": "2"})
    (folder / "modeling.py").write_text(MODELING.format(facts=given, mark=MARK))


class Lines:
    """The lines that a process prints."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._seen: list[str] = []

    def line(self, text: str) -> str:
        """Return the next line with a text."""
        while line := self._stream.readline():
            self._seen.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self._seen))

    def event(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line(f'"{name}"'))
        return found


@pytest.fixture
def facts() -> Iterator[dict[str, str]]:
    need_victims()
    with place_for([]) as folder, victim_in(folder, []) as found:
        yield found


def test_code_of_a_checkpoint_reaches_nothing_and_its_server_serves(facts: dict[str, str], tmp_path: Path) -> None:
    write_hostile(tmp_path / "model", facts)
    command = [sys.executable, "-P", "-m", "headrace", "serve", str(tmp_path / "model"), "--trust-remote-code"]
    command += ["--sandbox", "require", "--code-network", "loopback", "--code-max-processes", "320"]
    command += ["--port", "0", "--threads", "1", "--dtype", "fp32", "--log-format", "json", "--handler", "auto"]
    secrets = {"HEADRACE_API_KEY": KEY, "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "HF_HOME": "/root/hub"}
    variables = {**os.environ, "HEADRACE_HOME": str(tmp_path / "home"), **secrets}
    with (
        subprocess.Popen(command, stderr=-2, stdout=-1, text=True, env=variables) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        server = Lines(process.stdout)
        parts = server.event("server.isolated")
        outcomes = json.loads(server.line(MARK).partition(MARK)[2])
        environment = json.loads(server.line("{"))
        url = server.event("server.ready")["url"]
        answers = [
            httpx.post(
                f"{url}/v1/completions",
                json={"prompt": "ab", "max_tokens": 2, "ignore_eos": True},
                headers={"Authorization": f"Bearer {key}"},
                timeout=WAIT_S,
            )
            for key in (KEY, "another")
        ]
        process.send_signal(signal.SIGTERM)
        server.event("server.stopped")
        assert process.wait(WAIT_S) == 0
    assert [answer.status_code for answer in answers] == [200, 401]
    assert answers[0].json()["usage"]["completion_tokens"] == 3, "the formatter's"
    assert parts["sandbox"].startswith("namespaces mount ipc pid network; Landlock")
    assert {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_HOME"} <= {*parts["withheld"]}
    assert not {*secrets.values()} & {*environment.values()}
    assert not reached({name: said for name, said in outcomes.items() if isinstance(said, str)})
    assert not left_over(facts["marker"])


def test_a_prompt_without_a_server_runs_code_of_a_checkpoint_in_the_sandbox(
    facts: dict[str, str], tmp_path: Path
) -> None:
    write_hostile(tmp_path / "model", facts)
    command = [sys.executable, "-P", "-m", "headrace", "generate", str(tmp_path / "model"), "ab", "--completion"]
    command += ["--trust-remote-code", "--dtype", "fp32", "--threads", "1", "-n", "2", "--json"]
    variables = {"HEADRACE_HOME": str(tmp_path / "home"), "HEADRACE_SANDBOX": "require", "HF_TOKEN": "t"}
    variables |= {"HEADRACE_CODE_NETWORK": "loopback"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output_tokens"] <= 2
    outcomes, environment = done.stderr.partition(MARK)[2].splitlines()[:2]
    assert "HF_TOKEN" not in json.loads(environment)
    assert not reached({name: said for name, said in json.loads(outcomes).items() if isinstance(said, str)})
    assert not left_over(facts["marker"])


def settings_for(folder: Path, **fields: Any) -> ServerSettings:
    return ServerSettings(model=str(folder), trust_remote_code=True, **fields)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def trusted_in(model: Path) -> Trusted:
    return Trusted(Located("m", model), BackendChoice(name="transformers", device="cpu", reason=""))


def test_only_backends_that_run_code_of_checkpoints_need_a_sandbox(model: Path) -> None:
    found = find_trusted(settings_for(model), no_progress)
    assert found is not None
    assert found.choice.name == "transformers"
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (model / "config.json").write_text(json.dumps(llama))
    assert find_trusted(settings_for(model), no_progress) is None
    assert not needs_isolation(settings_for(model, sandbox="off"))
    assert not needs_isolation(ServerSettings(model=str(model), vllm_args={"seed": 1}))
    assert needs_isolation(ServerSettings(model=str(model), vllm_args={"--logits-processors": "own:Code"}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"chat_template": "/etc/hostname"}, "chat_template is /etc/hostname and trust_remote_code is true"),
        ({"adapter": ("a=/srv",)}, "adapter is /srv"),
        ({"adapter_folders": ("/srv",)}, "adapter_folders is /srv"),
        (
            {"code_network": "none", "otlp_traces_endpoint": "http://127.0.0.1:1"},
            "otlp_traces_endpoint is set, code_network is none, and trust_remote_code is true; expected",
        ),
    ],
)
def test_settings_of_a_worker_that_would_widen_the_sandbox_are_refused(
    fields: dict[str, Any], expected: str, model: Path
) -> None:
    settings = settings_for(model, port=0, **fields)
    with pytest.raises(SettingsError, match=expected):
        run_isolated(settings, trusted_in(model), notices=(), progress=no_progress, fetches_adapters=True)


def test_a_model_is_not_loaded_into_a_process_without_the_sandbox_that_is_required(model: Path) -> None:
    with pytest.raises(SettingsError, match="sandbox is require and trust_remote_code is true; expected none"):
        load_engine(settings_for(model, sandbox="require"))
    settings = ServerSettings(model=str(model), sandbox="require", vllm_args={"trust_remote_code": True})
    with pytest.raises(SettingsError, match="sandbox is require and vllm_args has trust_remote_code; expected none"):
        load_engine(settings)


def test_adapters_are_fetched_into_the_sandbox_if_it_has_the_network(model: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(model.parent))
    packed = model.parent / "a.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(model / "config.json", "adapter/config.json")
    fetched = isolated.fetch_adapter_for(settings_for(model))(str(packed), None)
    assert (fetched / "config.json").is_file()
    with pytest.raises(InvalidRequest, match="code_network is loopback; expected all"):
        isolated.fetch_adapter_for(settings_for(model, code_network="loopback"))(str(packed), None)


def test_the_plan_survives_its_way_into_the_sandbox(model: Path) -> None:
    settings = settings_for(model, adapter=("a=b",), tls_cert=Path("c.pem"), vllm_args={"a": [1]})
    plan = trusted_code.Plan(
        settings=settings,
        located=Located("m", model),
        notices=(),
        parent=trusted_code.this_process(),
        listener=3,
        events=4,
        withheld=("A",),
    )
    descriptor = trusted_code.write_plan(plan)
    assert replace(trusted_code.read_plan(descriptor), notices=(), withheld=("A",)) == plan


def test_reports_of_the_server_are_read_until_it_is_ready_and_no_other_lines() -> None:
    texts = dict.fromkeys(("name", "family", "dtype", "kv_dtype", "device"), "a")
    names = ("max_model_len", "max_prompt_tokens", "max_num_seqs", "vocab_size", "num_parameters", "created_s")
    info = ModelInfo(**texts, **dict.fromkeys(names, 1), revision=None, has_chat_template=False)
    ready = msgspec.json.encode(Event(info=info, stats=EngineStats()))
    lines = [b'{"task":"t","completed":1,"total":2}\n', ready + b"\n", b"{}\n"]
    seen = [*events_of(io.BytesIO(b"".join(lines)))]
    assert [(event.task, event.info) for event in seen] == [("t", None), ("", info)]
    assert [*events_of(io.BytesIO(b"no json\n" + ready))] == []
