"""Deployment files and workflows name commands, settings, versions and paths that exist."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from headrace.serving.settings.docs import setting_rows
from headrace.serving.settings.loading import FOREIGN_ENV_NAMES
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.server_settings import ServerSettings
from headrace.tools.cli.main import COMMANDS
from tests.command_lines import parse

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").iterdir())
CHART = DEPLOY / "helm" / "headrace"
TEMPLATES = sorted((CHART / "templates").iterdir())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
INSTALL = ROOT / "docs" / "install.md"
SERVICE = ROOT / "docs" / "guides" / "service.md"
FILES = [
    DEPLOY / "Dockerfile",
    *COMPOSE,
    *MANIFESTS,
    CHART / "values.yaml",
    *TEMPLATES,
    *UNITS,
    *WORKFLOWS,
    INSTALL,
    SERVICE,
    ROOT / "README.md",
    ROOT / "pyproject.toml",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS: dict[str, type] = {"serve": ServerSettings, "up": PlatformSettings}

_COMMAND = re.compile(
    rf"(?:headrace(?::[\d.]+)?|--rm platform) ((?:{'|'.join(COMMANDS)})\b(?:\"[^\"\n]*\"|[^\n|&;`\])\"])*)"
)
_CODE = re.compile(r"```bash\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def commands(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `headrace` command in a file."""
    text = path.read_text()
    if path.suffix == ".md":
        text = "\n".join(block or inline for block, inline in _CODE.findall(text))
    yield from (shlex.split(match, comments=True) for match in _COMMAND.findall(text))
    if path in COMPOSE:
        yield from (service["command"] for service in headrace_services(path))
    if path in MANIFESTS:
        yield from (pod["containers"][0]["args"] for pod in pods(path))


def headrace_services(path: Path) -> list[dict[str, Any]]:
    services = yaml.safe_load(path.read_text())["services"].values()
    return [service for service in services if service["image"].startswith("headrace:")]


def pods(path: Path) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(path.read_text())
    return [document["spec"]["template"]["spec"] for document in documents if "template" in document["spec"]]


def default(command: str, name: str) -> Any:
    return next(row.default for row in setting_rows(SETTINGS[command]) if row.name == name)


def test_every_command_in_them_exists_with_its_options() -> None:
    found = [(path.name, arguments) for path in FILES for arguments in commands(path)]
    assert {"serve", "up", "keys", "doctor", "generate"} <= {arguments[0] for _, arguments in found}
    for _, arguments in found:
        parse(arguments)


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["serve", "smollm2", "--max-tokens", "16"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_in_them_is_a_setting(path: Path) -> None:
    known = FOREIGN_ENV_NAMES | {row.env for kind in SETTINGS.values() for row in setting_rows(kind)}
    names = set(re.findall(r"\bHEADRACE_[A-Z_]*[A-Z]\b(?!_)", path.read_text()))
    assert names <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_images_and_wheels_in_them_are_of_this_version(path: Path) -> None:
    versions = re.findall(r"\bheadrace[:-](\d[\d.]*\d)", path.read_text())
    assert set(versions) <= {PROJECT["project"]["version"]}


@pytest.mark.parametrize("path", [DEPLOY / "Dockerfile", INSTALL], ids=lambda path: path.name)
def test_extras_that_they_install_exist(path: Path) -> None:
    named = re.findall(r"\[([a-z0-9,]+)\]['\"]|EXTRAS=([a-z0-9,]+)", path.read_text())
    extras = {name for names in named for name in ",".join(filter(None, names)).split(",")}
    assert extras
    assert extras <= set(PROJECT["project"]["optional-dependencies"])


def test_workflows_and_pages_use_one_version_of_each_action() -> None:
    texts = [path.read_text() for path in (*WORKFLOWS, *(ROOT / "docs").rglob("*.md"))]
    versions: dict[str, set[str]] = {}
    for action, major in re.findall(r"uses: ([\w./-]+)@(?:[0-9a-f]{40} # )?(v\d+|\S+)", "\n".join(texts)):
        versions.setdefault(action, set()).add(major)
    assert {"actions/checkout", "actions/cache"} <= versions.keys()
    assert {action: found for action, found in versions.items() if len(found) > 1} == {}


def test_workflows_pin_each_action_by_its_commit_and_say_its_version() -> None:
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: *(.*)", path.read_text())]
    assert len(used) > 20
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_extras_that_texts_name_exist() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = re.findall(r"(?:headrace|HEADRACE|\$\{wheel\}|'\.)\[([a-z0-9,]+)\]", "\n".join(map(Path.read_text, texts)))
    assert len(named) > 10
    assert {extra for names in named for extra in names.split(",")} <= set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_drain_before_they_are_killed_and_get_no_variables_of_services(path: Path) -> None:
    (pod,) = pods(path)
    container = pod["containers"][0]
    command = container["args"][0]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    grace_s = variables["HEADRACE_UP_SHUTDOWN_GRACE_S" if command == "up" else "HEADRACE_SHUTDOWN_GRACE_S"]
    assert pod["terminationGracePeriodSeconds"] > float(grace_s)
    assert pod["enableServiceLinks"] is False
    assert "livenessProbe" not in container
    assert container["ports"][0]["containerPort"] == default(command, "port")


def test_the_ray_cluster_has_the_fields_of_kuberay_and_misspelt_ones_are_refused() -> None:
    schema = json.loads((ROOT / "scripts" / "raycluster.schema.json").read_text())
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "kuberay.yaml").read_text())
    (cluster,) = (document for document in documents if document["kind"] == "RayCluster")
    jsonschema.validate(cluster, schema)
    spec = cluster["spec"]
    for wrong in (
        {**spec, "workerGroupSpec": spec["workerGroupSpecs"]},
        {**spec, "authOptions": {"mode": "tokens"}},
        {**spec, "headGroupSpec": {**spec["headGroupSpec"], "rayStartParams": {"num-cpus": 0}}},
        {**spec, "workerGroupSpecs": [{**spec["workerGroupSpecs"][0], "replicas": "2"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**cluster, "spec": wrong}, schema)


def test_the_charts_values_are_those_of_its_schema_and_misspelt_ones_are_refused() -> None:
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert not list(validator.iter_errors(values))
    known = values.keys() | {"global"}
    assert validator.schema["properties"].keys() == known
    for part in ("server", "platform", "image", "shutdown"):
        assert validator.schema["properties"][part]["properties"].keys() == values[part].keys()
        assert list(validator.iter_errors({**values, part: {**values[part], "modle": "x"}}))


def test_the_chart_is_of_this_version_and_names_the_ports_of_its_pods() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {PROJECT["project"]["version"]}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for command, part in (("serve", "server"), ("up", "platform")):
        assert values[part]["service"]["port"] == default(command, "port")
        template = (CHART / "templates" / f"{part}.yaml").read_text()
        assert f"containerPort: {default(command, 'port')}" in template
        assert f'list "{command}"' in template
    assert values["shutdown"]["graceSeconds"] > values["shutdown"]["delaySeconds"]


def test_the_chart_refuses_several_platforms_without_what_they_share() -> None:
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    platform = yaml.safe_load((CHART / "values.yaml").read_text())["platform"]
    shared = {"existingSecret": "headrace", "s3Endpoint": "http://minio:9000"}
    for changed, is_valid in (
        ({}, True),
        ({"replicas": 0}, False),
        ({"replicas": 3}, False),
        ({"replicas": 3, **shared}, True),
        ({"replicas": 3, **shared, "existingSecret": ""}, False),
        ({"replicas": 3, **shared, "s3Endpoint": "minio:9000"}, False),
        ({"replicas": 3, **shared, "antiAffinity": "none"}, False),
    ):
        assert validator.is_valid({"platform": {**platform, **changed}}) is is_valid, changed


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_services_drain_before_they_are_killed_and_are_probed_on_their_port(path: Path) -> None:
    (service,) = headrace_services(path)
    command = service["command"][0]
    port = default(command, "port")
    assert float(service["stop_grace_period"].removesuffix("s")) > default(command, "shutdown_grace_s")
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/" in service["healthcheck"]["test"][-1]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_drain_before_they_are_killed_and_allow_the_namespaces_of_user_code(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    values = dict(line.split("=", 1) for line in lines)
    program, *arguments = shlex.split(values["ExecStart"])
    parse(arguments)
    assert program == "/opt/headrace/bin/headrace"
    assert float(values["TimeoutStopSec"]) > default(arguments[0], "shutdown_grace_s")
    assert values["KillMode"] == "mixed"
    assert not {"RestrictNamespaces", "SystemCallFilter", "PrivateDevices", "MemoryDenyWriteExecute"} & set(values)


def test_wheels_are_built_for_each_python_from_the_oldest_that_is_supported() -> None:
    built = re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])
    oldest = int(PROJECT["project"]["requires-python"].removeprefix(">=3."))
    assert [int(minor) for minor in built] == list(range(oldest, oldest + len(built)))
