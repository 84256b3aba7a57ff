"""The table has every instance type of the API, with the right numbers."""

import pytest
from botocore.loaders import Loader

from headrace.core.gpus import Gpu
from headrace.platform.cluster.instance_types import Host, find_instance_type, share_of_host
from headrace.platform.cluster.this_host import this_host

GIB = 1 << 30
SMALL = Host(num_cores=2, memory_bytes=8 * GIB)


def names() -> list[str]:
    model = Loader().load_service_model("sagemaker", "service-2")
    return list(model["shapes"]["ProductionVariantInstanceType"]["enum"])


def test_every_type_of_the_api_is_known() -> None:
    assert [name for name in names() if find_instance_type(name) is None] == []


def test_every_type_has_sensible_numbers() -> None:
    for name in names():
        kind = find_instance_type(name)
        assert kind is not None
        assert 1 <= kind.vcpus <= 192, name
        assert kind.memory_bytes >= 1 * GIB, name
        assert bool(kind.accelerator) == bool(kind.num_accelerators), name


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_gib", "accelerators"),
    [
        ("ml.t2.medium", 2, 4, 0),
        ("ml.m5.large", 2, 8, 0),
        ("ml.m8g.medium", 1, 4, 0),
        ("ml.c4.8xlarge", 36, 60, 0),
        ("ml.c5.18xlarge", 72, 144, 0),
        ("ml.m4.10xlarge", 40, 160, 0),
        ("ml.r7i.48xlarge", 192, 1536, 0),
        ("ml.g4dn.12xlarge", 48, 192, 4),
        ("ml.g5.2xlarge", 8, 32, 1),
        ("ml.g5.12xlarge", 48, 192, 4),
        ("ml.g5.48xlarge", 192, 768, 8),
        ("ml.g6e.xlarge", 4, 32, 1),
        ("ml.inf2.xlarge", 4, 16, 1),
        ("ml.inf2.24xlarge", 96, 384, 6),
        ("ml.p2.8xlarge", 32, 488, 8),
        ("ml.p3.8xlarge", 32, 244, 4),
        ("ml.p4d.24xlarge", 96, 1152, 8),
        ("ml.p5.48xlarge", 192, 2048, 8),
        ("ml.p5.4xlarge", 16, 256, 1),
        ("ml.trn1.32xlarge", 128, 512, 16),
        ("ml.p6e-gb200.36xlarge", 144, 960, 4),
    ],
)
def test_known_numbers(name, vcpus, memory_gib, accelerators) -> None:
    kind = find_instance_type(name)
    assert kind is not None
    assert (kind.vcpus, kind.memory_bytes, kind.num_accelerators) == (vcpus, memory_gib * GIB, accelerators)


@pytest.mark.parametrize("name", ["", "ml.m5.huge", "m5.large", "ml.zz9.large", "ml.m5.xlarge\n"])
def test_other_names_are_not_in_the_table(name) -> None:
    assert find_instance_type(name) is None


def test_a_type_that_fits_the_host_has_no_notices() -> None:
    share = share_of_host("ml.m5.large", Host(num_cores=8, memory_bytes=64 * GIB))
    assert (share.threads, share.memory_bytes, share.notices) == (2, 8 * GIB, ())


def test_missing_resources_of_the_host_are_notices() -> None:
    share = share_of_host("ml.g5.12xlarge", SMALL)
    assert (share.threads, share.memory_bytes) == (2, 192 * GIB)
    said = " ".join(share.notices)
    assert "4 x NVIDIA A10G" in said
    assert "48 vCPUs; this host has 2" in said
    assert "192 GiB of memory" in said


@pytest.mark.parametrize(
    ("name", "num_gpus", "said"),
    [
        ("ml.g5.12xlarge", 4, None),
        ("ml.g5.12xlarge", 2, "4 x NVIDIA A10G; this host has 2 GPUs (NVIDIA L4): a worker gets at most 2."),
        ("ml.g5.12xlarge", 1, "this host has 1 GPU (NVIDIA L4): a worker gets at most 1."),
        ("ml.g5.12xlarge", 0, "4 x NVIDIA A10G, which this host lacks: the model runs on the CPU."),
        ("ml.inf2.xlarge", 2, "AWS Inferentia2, which this host lacks: the model runs on the CPU."),
    ],
)
def test_missing_accelerators_are_notices(name: str, num_gpus: int, said: str | None) -> None:
    gpus = tuple(Gpu(index=index, name="NVIDIA L4") for index in range(num_gpus))
    notices = share_of_host(name, Host(num_cores=64, memory_bytes=512 * GIB, gpus=gpus)).notices
    assert [said in notice for notice in notices] == ([True] if said else [])


def test_an_unknown_type_may_use_the_whole_host_with_a_notice() -> None:
    assert share_of_host("ml.future.xlarge", SMALL).threads == 2
    assert share_of_host("ml.future.xlarge", SMALL).memory_bytes is None
    assert "not in the table" in share_of_host("ml.future.xlarge", SMALL).notices[0]
    assert share_of_host("", SMALL).notices == ()
    with_gpu = Host(num_cores=2, memory_bytes=8 * GIB, gpus=(Gpu(index=0),))
    assert "SM_NUM_GPUS" in share_of_host("ml.future.xlarge", with_gpu).notices[0]


def test_this_host_has_cores_and_memory() -> None:
    host = this_host()
    assert host.num_cores >= 1
    assert host.memory_bytes > 0
