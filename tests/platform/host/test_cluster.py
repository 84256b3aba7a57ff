"""The launcher of a platform, by its setting."""

import signal
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.processes import is_running, reap, spawn
from headrace.platform.cluster.containers import ContainerLauncher
from headrace.platform.cluster.instance_types import Host
from headrace.platform.cluster.worker_files import write_value
from headrace.platform.host.folders import DataFolder
from headrace.platform.host.launchers import Cluster, make_cluster
from headrace.serving.settings.platform_settings import PlatformSettings, load_platform_settings

HOST = Host(num_cores=2, memory_bytes=8 << 30)


def made(folder: Path, cluster: str, *missing: str) -> Cluster:
    settings = PlatformSettings(cluster=cluster)
    return make_cluster(settings, DataFolder(folder), {}, host=HOST, has_module=lambda name: name not in missing)


def test_an_instance_type_is_a_share_of_this_machine_or_decided_where_the_worker_is_placed(tmp_path: Path) -> None:
    local, ray = made(tmp_path, "local"), made(tmp_path, "ray")
    assert (local.launcher.name, local.head) == ("local", None)
    assert (ray.launcher.name, ray.head is not None) == ("ray", True)
    assert local.share_of("ml.g5.xlarge").threads == 2
    assert "the model runs on the CPU" in local.share_of("ml.g5.xlarge").notices[0]
    share = ray.share_of("ml.g5.xlarge")
    assert (share.threads, share.memory_bytes, share.notices) == (None, 16 << 30, ())
    assert "one CPU is reserved" in ray.share_of("ml.unheard.of").notices[0]
    assert made(tmp_path, "10.0.0.1:6379").head is None


@pytest.mark.parametrize(
    ("cluster", "missing", "said"),
    [
        ("ray", "ray", f"cluster is 'ray', and Ray is not installed: `{pip_install('headrace[ray]')}`"),
        ("10.0.0.1:6379", "ray", "cluster is '10.0.0.1:6379', and Ray is not installed"),
        (
            "ray://h:1",
            "grpc",
            f"cluster is 'ray://h:1', and Ray's client is not installed: `{pip_install('headrace[ray]')}",
        ),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, cluster: str, missing: str, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        made(tmp_path, cluster, missing)
    assert said in raised.value.message
    assert made(tmp_path, "local", "ray", "grpc").launcher.name == "local"


def test_a_gpu_is_shared_on_this_machine_only() -> None:
    assert load_platform_settings({"workers_per_gpu": "2"}, {}).workers_per_gpu == 2
    with pytest.raises(SettingsError, match=r"workers_per_gpu is 2, and cluster is 'ray'; expected workers_per_gpu 1"):
        load_platform_settings({"workers_per_gpu": "2", "cluster": "ray"}, {})


def test_a_cluster_left_by_a_killed_platform_ends_when_another_one_is_configured(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.cluster.mkdir()
    process = spawn(["/bin/sleep", "100"], {}, tmp_path / "log")
    state = {"port": 1, "sessions": str(folder.cluster / "s"), "process": process}
    write_value(folder.cluster / "state.json", state)
    made(tmp_path, "ray")
    assert is_running(process), "it is the one that is wanted"
    made(tmp_path, "local")
    assert not is_running(process)
    assert reap(process) in {None, -signal.SIGKILL}
    assert not folder.cluster.exists()


def test_containers_run_on_this_machine_only(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = {"PATH": str(tmp_path)}
    local = make_cluster(PlatformSettings(), DataFolder(tmp_path), env, host=HOST, runs_containers=True)
    assert isinstance(local.launcher, ContainerLauncher)
    with pytest.raises(SettingsError, match="neither docker nor podman is on the PATH"):
        make_cluster(PlatformSettings(), DataFolder(tmp_path), {"PATH": ""}, host=HOST, runs_containers=True)
    with pytest.raises(SettingsError, match="Containers run with cluster local"):
        make_cluster(PlatformSettings(cluster="ray"), DataFolder(tmp_path), env, host=HOST, runs_containers=True)
    with pytest.raises(SettingsError, match="containers is on, and cluster is 'ray'; expected cluster local"):
        load_platform_settings({"containers": "true", "cluster": "ray"}, {})
