"""
SageMaker's instance types, and the share of this host that each stands for.

The table follows EC2's sizes: vCPUs grow with the size, memory with the vCPUs, by family. Exceptions are listed
separately. Source: botocore's `ProductionVariantInstanceType`; aws.amazon.com/ec2/instance-types.
"""

import re
from dataclasses import dataclass
from typing import Final

from headrace.core.gpus import Gpu
from headrace.core.sizes import format_size

_GIB: Final = 1 << 30
_NAME: Final = re.compile(r"ml\.([a-z0-9-]+)\.(medium|large|(\d*)xlarge)")

_GIB_PER_VCPU: Final[dict[str, float]] = {
    **dict.fromkeys(("c4", "c5", "c5d", "c6g", "c6gd", "c6gn", "c6i", "c6in", "c7g", "c7i", "c8g"), 2),
    **dict.fromkeys(("m4", "m5", "m5d", "m6g", "m6gd", "m6i", "m7i", "m8g", "t2"), 4),
    **dict.fromkeys(("r5", "r5d", "r6g", "r6gd", "r6i", "r7gd", "r7i", "r8g"), 8),
    **dict.fromkeys(("g4dn", "g5", "g6", "g7"), 4),
    **dict.fromkeys(("g6e", "g7e"), 8),
    **dict.fromkeys(("inf1",), 2),
    **dict.fromkeys(("inf2", "trn1", "trn1n"), 4),
    "trn2": 32 / 3,
    "dl1": 8,
    "p2": 61 / 4,
    "p3": 61 / 8,
    **dict.fromkeys(("p4d", "p4de"), 12),
    **dict.fromkeys(("p5", "p5e", "p5en", "p6-b200"), 32 / 3),
    "p6-b300": 64 / 3,
    "p6e-gb200": 20 / 3,
}
_VCPUS: Final = {"c4.8xlarge": 36, "t2.medium": 2}
_MEMORY_GIB: Final[dict[str, float]] = {
    "c4.large": 3.75,
    "c4.xlarge": 7.5,
    "c4.2xlarge": 15,
    "c4.4xlarge": 30,
    "c4.8xlarge": 60,
    "t2.medium": 4,
    "p2.16xlarge": 732,
    "p5.4xlarge": 256,
    "g7e.12xlarge": 512,
    "g7e.24xlarge": 1024,
    "g7e.48xlarge": 2048,
}
_G_COUNTS: Final = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_ACCELERATORS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "dl1": ("Habana Gaudi", {"24xlarge": 8}),
    "g4dn": ("NVIDIA T4", {"12xlarge": 4}),
    "g5": ("NVIDIA A10G", _G_COUNTS),
    "g6": ("NVIDIA L4", _G_COUNTS),
    "g6e": ("NVIDIA L40S", _G_COUNTS),
    "g7": ("NVIDIA GPU", _G_COUNTS),
    "g7e": ("NVIDIA RTX PRO 6000", {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8}),
    "inf1": ("AWS Inferentia", {"6xlarge": 4, "24xlarge": 16}),
    "inf2": ("AWS Inferentia2", {"24xlarge": 6, "48xlarge": 12}),
    "p2": ("NVIDIA K80", {"8xlarge": 8, "16xlarge": 16}),
    "p3": ("NVIDIA V100", {"8xlarge": 4, "16xlarge": 8}),
    "p4d": ("NVIDIA A100", {"24xlarge": 8}),
    "p4de": ("NVIDIA A100", {"24xlarge": 8}),
    "p5": ("NVIDIA H100", {"48xlarge": 8}),
    "p5e": ("NVIDIA H200", {"48xlarge": 8}),
    "p5en": ("NVIDIA H200", {"48xlarge": 8}),
    "p6-b200": ("NVIDIA B200", {"48xlarge": 8}),
    "p6-b300": ("NVIDIA B300", {"48xlarge": 8}),
    "p6e-gb200": ("NVIDIA GB200", {"36xlarge": 4}),
    "trn1": ("AWS Trainium", {"32xlarge": 16}),
    "trn1n": ("AWS Trainium", {"32xlarge": 16}),
    "trn2": ("AWS Trainium2", {"48xlarge": 16}),
}
"""The accelerator of each family, and its number by size; other sizes have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """The resources of an instance on AWS."""

    name: str
    """`ml.g5.2xlarge`"""
    vcpus: int
    memory_bytes: int
    num_accelerators: int = 0
    accelerator: str = ""
    """Name of the accelerator; empty without one."""

    @property
    def num_gpus(self) -> int:
        """The number of accelerators that cluster nodes count as GPUs."""
        return self.num_accelerators if self.accelerator.startswith("NVIDIA") else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The resources that this process may use."""

    num_cores: int
    """Usable physical cores."""
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    """GPUs that its workers may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The share of the host that a worker gets."""

    threads: int | None
    """None: decided on the node where the worker starts."""
    memory_bytes: int | None
    """Memory of the instance type, which bounds the worker's memory plan like the free memory does. None: no bound."""
    notices: tuple[str, ...] = ()
    """Differences from the instance type, in sentences."""
    num_gpus: int = 0
    """GPUs that a worker gets; 0: none, or the node that has them is not chosen yet."""


def instance_families() -> tuple[str, ...]:
    """Return the families of the table, such as `g5`."""
    return tuple(_GIB_PER_VCPU)


def find_instance_type(name: str) -> InstanceType | None:
    """Look up an instance type; None if it is not in the table."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in _GIB_PER_VCPU:
        return None
    family, size, times = match.groups()
    short = f"{family}.{size}"
    vcpus = _VCPUS.get(short) or {"medium": 1, "large": 2}.get(size) or 4 * int(times or 1)
    memory_gib = _MEMORY_GIB.get(short) or vcpus * _GIB_PER_VCPU[family]
    accelerator, counts = _ACCELERATORS.get(family, ("", {}))
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_bytes=round(memory_gib * _GIB),
        num_accelerators=counts.get(size, 1) if accelerator else 0,
        accelerator=accelerator,
    )


def share_of_host(name: str, host: Host) -> HostShare:
    """
    Return the share of this host for an instance type: its vCPUs, at most all cores, and its memory.

    The launcher gives a worker fewer cores if other workers hold some.
    """
    kind = find_instance_type(name)
    if kind is None:
        why = f"{name} is not in the table of instance types: the worker may use all cores and the free memory."
        gpus = " It gets GPUs if its container names their number, for example in SM_NUM_GPUS." if host.gpus else ""
        return HostShare(threads=host.num_cores, memory_bytes=None, notices=(f"{why}{gpus}",) if name else ())
    return HostShare(
        threads=min(kind.vcpus, host.num_cores),
        memory_bytes=kind.memory_bytes,
        notices=tuple(_missing(kind, host)),
        num_gpus=min(kind.num_gpus, len(host.gpus)),
    )


def share_of_cluster(name: str) -> HostShare:
    """Return the share for an instance type on a cluster, where the node that limits it is not chosen yet."""
    kind = find_instance_type(name)
    if not name or kind is not None:
        return HostShare(threads=None, memory_bytes=kind.memory_bytes if kind else None)
    why = f"{name} is not in the table of instance types: one CPU is reserved for the worker."
    return HostShare(threads=None, memory_bytes=None, notices=(why,))


def _missing(kind: InstanceType, host: Host) -> list[str]:
    missing = []
    if kind.num_accelerators:
        missing.extend(_missing_accelerators(kind, host))
    if kind.vcpus > host.num_cores:
        missing.append(f"{kind.name} has {kind.vcpus} vCPUs; this host has {host.num_cores}, which all workers share.")
    if kind.memory_bytes > host.memory_bytes:
        has, here = format_size(kind.memory_bytes), format_size(host.memory_bytes)
        missing.append(f"{kind.name} has {has} of memory; this host has {here} free, which all workers share.")
    return missing


def _missing_accelerators(kind: InstanceType, host: Host) -> list[str]:
    count = f"{kind.num_accelerators} x " if kind.num_accelerators > 1 else ""
    has = f"{kind.name} has {count}{kind.accelerator}"
    if not kind.num_gpus or not host.gpus:
        return [f"{has}, which this host lacks: the model runs on the CPU."]
    number, names = len(host.gpus), ", ".join(dict.fromkeys(gpu.name for gpu in host.gpus))
    if number < kind.num_gpus:
        gpus = "GPU" if number == 1 else "GPUs"
        return [f"{has}; this host has {number} {gpus} ({names}): a worker gets at most {number}."]
    return []
