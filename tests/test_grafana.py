"""The Grafana dashboard asks for metrics that exist, in valid queries; the scrape configuration finds the pages."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.platform.host.metrics_pages import TARGETS_PATH
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.server_settings import ServerSettings

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((FOLDER / "headrace.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
KNOWN = set(re.findall(r"`([a-z0-9_:]+)`", (ROOT / "docs" / "metrics.md").read_text()))
OF_PROMETHEUS = {"up"}
_METRIC = re.compile(r"\b(?:headrace|process)_[a-z0-9_]+|\bup\b")


def config() -> Any:
    return yaml.safe_load((FOLDER / "prometheus.yml").read_text())


def test_every_metric_in_the_dashboard_exists() -> None:
    asked = {
        name.removesuffix("_bucket") for query in QUERIES for name in _METRIC.findall(re.sub(r"\{[^}]*\}", "", query))
    }
    assert len(asked) > 15
    assert asked - OF_PROMETHEUS <= KNOWN


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for panel in PANELS
        for position in [panel["gridPos"]]
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_scrape_configuration_names_the_default_ports_and_the_list_of_workers() -> None:
    jobs = {job["job_name"]: job for job in config()["scrape_configs"]}
    platform, server = f"127.0.0.1:{PlatformSettings().port}", f"127.0.0.1:{ServerSettings().port}"
    assert jobs["headrace-platform"]["static_configs"] == [{"targets": [platform]}]
    assert jobs["headrace-server"]["static_configs"] == [{"targets": [server]}]
    assert jobs["headrace-workers"]["http_sd_configs"][0]["url"] == f"http://{platform}{TARGETS_PATH}"
    named = set(itertools.chain.from_iterable(re.findall(r'job="([^"]+)"', query) for query in QUERIES))
    assert named <= jobs.keys()


def test_the_compose_file_mounts_files_that_exist() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"].values()
    mounted = [volume.split(":")[0] for service in services for volume in service["volumes"] if volume.startswith("./")]
    assert mounted
    assert all((FOLDER / path).is_file() for path in mounted)


def test_promtool_accepts_the_configuration_and_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    expressions = [query.replace("$__rate_interval", "1m").replace("$endpoint", "e") for query in QUERIES]
    rules = [{"record": f"query:n{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checks = (["config", "--syntax-only", str(FOLDER / "prometheus.yml")], ["rules", str(tmp_path / "rules.yml")])
    for arguments in checks:
        done = subprocess.run([promtool, "check", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
