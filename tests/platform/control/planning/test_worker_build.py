"""The specification of a worker, built from a model and its revision."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.instance_types import HostShare
from headrace.platform.cluster.launcher import ContainerImage, Limits, ResourceRequest
from headrace.platform.control.model.component import ComponentRevision
from headrace.platform.control.model.definitions import artifacts_of
from headrace.platform.control.model.endpoint import EndpointRevision
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.rollout_config import read_rollout
from headrace.platform.control.model.worker import failure_text
from headrace.platform.control.model.workload import Workload
from headrace.platform.control.planning.worker_build import (
    BuiltWorker,
    WorkerDefaults,
    build_worker,
    limits_of,
    resources_of,
    room_of,
)
from headrace.serving.artifacts.sources import ArtifactSource
from headrace.serving.settings.loading import load_settings
from tests.platform.control.support import IMAGE, share_of

DJL = "djl-inference:0.36.0-lmi27.0.0-cu130"
VLLM = "vllm/vllm-openai:v0.11.0"

S3_PREFIX = {"S3Uri": "s3://b/p/", "S3DataType": "S3Prefix", "CompressionType": "None"}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, ()),
        ({"ModelDataUrl": "s3://b/m.tar.gz"}, (ArtifactSource(uri="s3://b/m.tar.gz"),)),
        ({"ModelDataUrl": "s3://b/model"}, (ArtifactSource(uri="s3://b/model"),)),
        ({"ModelDataUrl": "s3://b/p/"}, (ArtifactSource(uri="s3://b/p/", is_prefix=True, is_archive=False),)),
        ({"ModelDataUrl": "/models/small"}, (ArtifactSource(uri="/models/small", is_archive=False),)),
        ({"ModelDataUrl": "/m.tgz"}, (ArtifactSource(uri="/m.tgz"),)),
        (
            {"ModelDataSource": {"S3DataSource": S3_PREFIX}},
            (ArtifactSource(uri="s3://b/p/", is_prefix=True, is_archive=False),),
        ),
        (
            {"AdditionalModelDataSources": [{"ChannelName": "draft", "S3DataSource": S3_PREFIX}]},
            (ArtifactSource(uri="s3://b/p/", is_prefix=True, is_archive=False, channel="draft"),),
        ),
    ],
)
def test_files_come_from_where_the_container_says(
    container: dict[str, Any], expected: tuple[ArtifactSource, ...]
) -> None:
    assert artifacts_of(container) == expected


def test_a_worker_has_all_that_its_container_and_its_variant_say() -> None:
    workload = workload_of(
        {
            "number": 1,
            "config": {
                "EndpointConfigName": "c",
                "ProductionVariants": [
                    {
                        "VariantName": "v",
                        "ModelName": "m",
                        "InstanceType": "ml.g5.xlarge",
                        "ModelDataDownloadTimeoutInSeconds": 90,
                    }
                ],
            },
            "models": {"m": {"PrimaryContainer": {"Image": "team/server:1", "Environment": {"A": "1"}}}},
        }
    )
    defaults = WorkerDefaults(
        share_of=share_of,
        own_images={"team/server": OwnImage(command=("serve", "{port}"))},
        environment={"A": "0", "AWS_REGION": "us-east-1"},
    )
    built = build_worker("w", workload, defaults)
    assert built.spec.command == ("serve", "{port}")
    assert built.spec.environment == {"A": "1", "AWS_REGION": "us-east-1"}
    assert (built.spec.artifact_timeout_s, built.spec.threads) == (90.0, 1)
    assert built.spec.resources == ResourceRequest(num_cpus=4, num_accelerators=1, memory_bytes=16 << 30)
    assert built.notices == ("ml.g5.xlarge has a GPU, which is not here.",)


@pytest.mark.parametrize(
    ("instance_type", "asked", "resources"),
    [
        ("ml.m5.xlarge", None, ResourceRequest(num_cpus=4, memory_bytes=16 << 30)),
        ("ml.inf2.xlarge", None, ResourceRequest(num_cpus=4, memory_bytes=16 << 30)),
        ("ml.unheard.of", None, None),
        (
            "ml.g5.12xlarge",
            {"NumberOfCpuCoresRequired": 2, "NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 2048},
            ResourceRequest(num_cpus=2, num_accelerators=1, memory_bytes=2 << 30, is_at_most=False),
        ),
        (
            "ml.m5.large",
            {"MinMemoryRequiredInMb": 512},
            ResourceRequest(num_cpus=1, memory_bytes=512 << 20, is_at_most=False),
        ),
    ],
)
def test_the_room_of_a_worker_is_a_share_of_a_type_or_what_its_component_needs(
    instance_type: str, asked: dict[str, Any] | None, resources: ResourceRequest | None
) -> None:
    assert room_of(workload_asking(asked, instance_type)) == resources


GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "threads", "memory_bytes"),
    [
        (None, 4, 8 * GIB),
        ({}, 4, 8 * GIB),
        ({"NumberOfCpuCoresRequired": 2, "MinMemoryRequiredInMb": 512}, 2, GIB // 2),
        ({"NumberOfCpuCoresRequired": 0.5, "MinMemoryRequiredInMb": 512}, 1, GIB // 2),
        ({"NumberOfCpuCoresRequired": 1.5, "MinMemoryRequiredInMb": 512}, 2, GIB // 2),
        ({"NumberOfCpuCoresRequired": 64, "MinMemoryRequiredInMb": 40960}, 4, 8 * GIB),
        ({"MinMemoryRequiredInMb": 512, "MaxMemoryRequiredInMb": 1024}, 4, GIB),
        ({"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 512}, 4, 8 * GIB),
        (
            {
                "NumberOfAcceleratorDevicesRequired": 1,
                "MinMemoryRequiredInMb": 512,
                "MaxMemoryRequiredInMb": 1024,
            },
            4,
            GIB,
        ),
    ],
)
def test_a_copy_has_the_cores_and_memory_that_its_component_asks_for_at_most_those_of_its_instance(
    asked: dict[str, Any] | None, threads: int, memory_bytes: int
) -> None:
    resources = resources_of(workload_asking(asked), HostShare(threads=4, memory_bytes=8 * GIB))
    assert (resources.threads, resources.memory_bytes) == (threads, memory_bytes)
    unknown = resources_of(workload_asking(asked), HostShare(threads=None, memory_bytes=None))
    assert (unknown.threads is None) == (not (asked or {}).get("NumberOfCpuCoresRequired"))


def test_a_serverless_worker_has_the_memory_that_its_variant_names() -> None:
    variant = {"VariantName": "v", "ModelName": "m", "ServerlessConfig": {"MemorySizeInMB": 2048, "MaxConcurrency": 5}}
    workload = workload_of(
        {
            "number": 1,
            "config": {"EndpointConfigName": "c", "ProductionVariants": [variant]},
            "models": {"m": {"PrimaryContainer": {"Image": DJL}}},
        }
    )
    resources = resources_of(workload, HostShare(threads=4, memory_bytes=8 * GIB))
    assert (resources.threads, resources.memory_bytes) == (4, 2 * GIB)
    assert limits_of(workload).memory_bytes == 2 * GIB


@pytest.mark.parametrize("image", [DJL, "unheard/of:1"])
def test_an_image_without_a_description_is_a_container_if_containers_are_wanted(image: str) -> None:
    own = {"*": OwnImage(is_container=True), "team/server": OwnImage(dialect="tgi-3")}
    defaults = WorkerDefaults(share_of=share_of, own_images=own, is_strict=True)
    environment = {"HF_MODEL_ID": "m", "API_KEY": "k"}

    def built(uri: str) -> BuiltWorker:
        variant = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}
        config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
        model = {"PrimaryContainer": {"Image": uri, "Environment": environment}}
        return build_worker("w", workload_of({"number": 1, "config": config, "models": {"m": model}}), defaults)

    worker = built(image).spec
    assert (worker.image, worker.options, worker.command) == (ContainerImage(uri=image), {}, ())
    assert worker.environment == environment
    assert built("team/server:2").spec.image is None


def test_limits_reach_the_worker_and_an_own_command_is_said_to_have_no_memory_limit() -> None:
    workload = workload_asking({"NumberOfCpuCoresRequired": 2, "MinMemoryRequiredInMb": 512})
    defaults = WorkerDefaults(
        share_of=lambda _name: HostShare(threads=4, memory_bytes=8 * GIB),
        own_images={"own": OwnImage(command=("serve", "{port}"))},
    )
    built = build_worker("w", workload, defaults)
    assert (built.spec.threads, built.spec.memory_bytes) == (2, GIB // 2)
    assert any("memory of an own image's command is not bounded" in notice for notice in built.notices)


@pytest.mark.parametrize(
    ("environment", "instance_type", "num_gpus"),
    [
        ({}, "ml.g5.12xlarge", 4),
        ({"SM_NUM_GPUS": "2", "OPTION_PIPELINE_PARALLEL_DEGREE": "2"}, "ml.g5.48xlarge", 4),
        ({"OPTION_PIPELINE_PARALLEL_DEGREE": "2"}, "ml.g5.48xlarge", 8),
        ({"SM_NUM_GPUS": "1"}, "ml.g5.12xlarge", 1),
        ({"OPTION_TENSOR_PARALLEL_DEGREE": "2", "SM_NUM_GPUS": "1"}, "ml.g5.12xlarge", 2),
        ({"OPTION_TENSOR_PARALLEL_DEGREE": "max"}, "ml.g5.12xlarge", 4),
        ({"SM_NUM_GPUS": "8"}, "ml.g5.12xlarge", 4),
        ({"SM_NUM_GPUS": "four"}, "ml.g5.xlarge", 1),
        ({"SM_NUM_GPUS": "2"}, "ml.m5.large", 0),
        ({"SM_NUM_GPUS": "2"}, "ml.future.xlarge", 2),
    ],
)
def test_a_worker_gets_the_gpus_that_its_model_is_split_over(
    environment: dict[str, str], instance_type: str, num_gpus: int
) -> None:
    room = built_on_gpus("own", environment, instance_type).spec.resources
    assert room is not None
    assert room.num_accelerators == num_gpus


@pytest.mark.parametrize(
    ("image", "environment", "degree", "num_gpus"),
    [
        (IMAGE, {}, "max", 4),
        (IMAGE, {"SHARDED": "false"}, "1", 1),
        (IMAGE, {"SM_NUM_GPUS": " "}, "max", 4),
        (IMAGE, {"SM_NUM_GPUS": "2"}, "2", 2),
        (DJL, {}, "max", 4),
        (DJL, {"TENSOR_PARALLEL_DEGREE": "2"}, "2", 2),
        (VLLM, {}, None, 4),
        (VLLM, {"SM_VLLM_TENSOR_PARALLEL_SIZE": "4"}, "4", 4),
    ],
)
def test_images_use_the_gpus_that_their_containers_use_and_the_others_get_a_notice(
    image: str, environment: dict[str, str], degree: str | None, num_gpus: int
) -> None:
    built = built_on_gpus(image, environment)

    settings, _ = load_settings({"model": "m", "container": "true"}, built.spec.environment, on_gpu=True)
    assert settings.tensor_parallel_size == (None if degree is None else 0 if degree == "max" else int(degree))
    assert built.spec.resources is not None
    assert built.spec.resources.num_accelerators == num_gpus
    notices = [notice for notice in built.notices if "has 4 GPUs and uses one" in notice]
    assert bool(notices) == (degree is None)
    assert all("Set SM_VLLM_TENSOR_PARALLEL_SIZE to 4" in notice for notice in notices)


def test_the_degree_of_an_own_image_counts_and_its_command_gets_all_gpus_without_a_notice() -> None:
    for image, num_gpus in (("two", 2), ("command", 4)):
        built = built_on_gpus(image, {})
        assert built.spec.resources is not None
        assert built.spec.resources.num_accelerators == num_gpus
        assert not built.notices


def test_no_gpus_are_idle_on_a_host_that_has_none() -> None:
    assert not built_on_gpus(VLLM, {}, host_gpus=0).notices


def built_on_gpus(
    image: str, environment: dict[str, str], instance_type: str = "ml.g5.12xlarge", *, host_gpus: int = 4
) -> BuiltWorker:
    model = {"PrimaryContainer": {"Image": image, "Environment": environment}}
    variant = {"VariantName": "v", "ModelName": "m", "InstanceType": instance_type}
    config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    own = {"two": OwnImage(options={"tensor_parallel_size": "2"}), "command": OwnImage(command=("serve", "{port}"))}
    defaults = WorkerDefaults(
        share_of=lambda _name: HostShare(threads=4, memory_bytes=8 * GIB, num_gpus=host_gpus), own_images=own
    )
    return build_worker("w", workload_of({"number": 1, "config": config, "models": {"m": model}}), defaults)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (None, Limits()),
        ({"NumberOfCpuCoresRequired": 0.5}, Limits(num_cpus=0.5)),
        ({"MinMemoryRequiredInMb": 512}, Limits(memory_bytes=GIB // 2)),
        ({"MinMemoryRequiredInMb": 512, "MaxMemoryRequiredInMb": 1024}, Limits(memory_bytes=GIB)),
        ({"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 512}, Limits()),
    ],
)
def test_only_what_a_component_names_is_a_limit(asked: dict[str, Any] | None, limits: Limits) -> None:
    assert limits_of(workload_asking(asked)) == limits


def workload_asking(asked: dict[str, Any] | None, instance_type: str = "ml.m5.large") -> Workload:
    """A workload of a variant; of an inference component, where something is asked for."""
    model = {"PrimaryContainer": {"Image": "own", "Environment": {}}}
    if asked is None:
        variant = {"VariantName": "v", "ModelName": "m", "InstanceType": instance_type}
        config: dict[str, Any] = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
        return workload_of({"number": 1, "config": config, "models": {"m": model}})
    revision = ComponentRevision(
        number=1,
        variant="v",
        instance_type=instance_type,
        specification={"ComputeResourceRequirements": asked},
        model=model,
        copies=1,
    )
    (workload,) = revision.workloads
    return workload


def workload_of(revision: dict[str, Any]) -> Workload:
    (workload,) = EndpointRevision(**revision).workloads
    return workload


def test_the_first_choice_of_a_pool_is_taken() -> None:
    pools = [
        {"InstanceType": "ml.g5.xlarge", "Priority": 2},
        {"InstanceType": "ml.m5.large", "Priority": 1, "ModelNameOverride": "small"},
    ]
    config = {
        "EndpointConfigName": "c",
        "ProductionVariants": [{"VariantName": "v", "ModelName": "m", "InstancePools": pools}],
    }
    small = {"PrimaryContainer": {"Image": IMAGE}}
    workload = workload_of({"number": 1, "config": config, "models": {"small": small}})
    assert (workload.instance_type, workload.model) == ("ml.m5.large", small)


@given(opening=st.text(max_size=1100), why=st.text(max_size=1100), tail=st.lists(st.text(max_size=400), max_size=12))
def test_a_reason_is_never_too_long_for_its_member(opening: str, why: str, tail: list[str]) -> None:
    text = failure_text(opening, why=why, log="group, stream v/i-1", log_tail=tail)
    assert len(text) <= 1024
    assert "\nIts log (group, stream v/i-1)" in text


def test_the_newest_lines_of_a_long_log_are_told() -> None:
    text = failure_text("It failed.", why="", log="g", log_tail=[f"line {number} {'x' * 100}" for number in range(30)])
    assert "line 29" in text
    assert "line 0 " not in text


def test_a_line_that_a_program_printed_is_told_without_its_event() -> None:
    tail = ['{"event": "handler.output", "line": "ValueError: no weights"}', '{"event": "other"}', '{"line": ']
    text = failure_text("It failed.", why="", log="g", log_tail=tail)
    assert text.endswith(' ends with:\nValueError: no weights\n{"event": "other"}\n{"line":')


@given(
    kind=st.sampled_from(["CANARY", "LINEAR", "ROLLING"]),
    size_type=st.sampled_from(["CAPACITY_PERCENT", "INSTANCE_COUNT"]),
    value=st.integers(1, 1000),
    num_workers=st.integers(0, 100),
)
def test_steps_of_traffic_rise_to_all_of_it(kind: str, size_type: str, value: int, num_workers: int) -> None:
    size = {"Type": size_type, "Value": value}
    routing = {"Type": kind, "WaitIntervalInSeconds": 0, "CanarySize": size, "LinearStepSize": size}
    deployment: dict[str, Any] = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing}}
    if kind == "ROLLING":
        deployment = {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 0}}
    steps = read_rollout(deployment, num_workers=num_workers).steps
    assert steps[-1] == 1.0
    assert list(steps) == sorted(set(steps))
    assert all(0 < step <= 1 for step in steps)
    assert len(steps) <= 100


@pytest.mark.parametrize(
    ("environment", "folders", "expected"),
    [
        ({}, Path("/p"), {}),
        ({"LMCACHE_LOCAL_DISK": "file:///tmp/kv"}, Path("/p"), {"HEADRACE_PREFIX_CACHE_DIR": "/p/uid"}),
        ({"HEADRACE_PREFIX_CACHE_DIR": "/etc"}, Path("/p"), {"HEADRACE_PREFIX_CACHE_DIR": "/p/uid"}),
        (
            {"LMCACHE_LOCAL_DISK": "/a", "LMCACHE_MAX_LOCAL_DISK_SIZE": "5", "HEADRACE_PREFIX_CACHE_DIR": "/b"},
            Path("/p"),
            {"HEADRACE_PREFIX_CACHE_DIR": "/p/uid", "LMCACHE_MAX_LOCAL_DISK_SIZE": "5"},
        ),
        ({"LMCACHE_LOCAL_DISK": "/tmp/kv"}, None, {}),
    ],
)
def test_a_prefix_cache_on_a_disk_is_in_the_folder_of_the_endpoint(
    environment: dict[str, str], folders: Path | None, expected: dict[str, str]
) -> None:
    model = {"PrimaryContainer": {"Image": IMAGE, "Environment": environment}}
    variant = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}
    config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    defaults = WorkerDefaults(share_of=share_of, prefix_caches=folders)
    workload = workload_of({"number": 1, "config": config, "models": {"m": model}})
    built = build_worker("w", workload, defaults, endpoint_uid="uid")
    found = {name: value for name, value in built.spec.environment.items() if "CACHE" in name}
    assert found == expected
    assert any("on a cluster" in notice for notice in built.notices) == (folders is None)
