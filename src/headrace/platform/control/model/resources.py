"""CPU cores, accelerators and memory of instances, and those that a copy of an inference component needs."""

from dataclasses import dataclass
from typing import Final, Literal

from headrace.platform.cluster.instance_types import find_instance_type
from headrace.platform.state.records import Json

Strategy = Literal["SPREAD", "BINPACK"]
_MIB: Final = 1 << 20
_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """An amount of CPU cores, accelerators and memory."""

    cpus: float = 0.0
    accelerators: float = 0.0
    memory_mb: float = 0.0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            cpus=self.cpus + other.cpus,
            accelerators=self.accelerators + other.accelerators,
            memory_mb=self.memory_mb + other.memory_mb,
        )

    def __str__(self) -> str:
        cores = f"{self.cpus:g} CPU core{'' if self.cpus == 1 else 's'}"
        accelerators = f"{self.accelerators:g} accelerator{'' if self.accelerators == 1 else 's'}"
        return f"{cores}, {accelerators} and {self.memory_mb:.0f} MB"

    def fits_in(self, whole: "Resources") -> bool:
        """Return whether `whole` has at least as much of everything."""
        return (
            self.cpus <= whole.cpus + _EPSILON
            and self.accelerators <= whole.accelerators + _EPSILON
            and self.memory_mb <= whole.memory_mb + _EPSILON
        )


UNBOUNDED: Final = Resources(cpus=float("inf"), accelerators=float("inf"), memory_mb=float("inf"))
"""Resources of an unknown instance type."""


def resources_of_type(instance_type: str) -> Resources:
    kind = find_instance_type(instance_type)
    if kind is None:
        return UNBOUNDED
    return Resources(cpus=kind.vcpus, accelerators=kind.num_accelerators, memory_mb=kind.memory_bytes / _MIB)


def read_requirements(requirements: Json) -> Resources:
    return Resources(
        cpus=float(requirements.get("NumberOfCpuCoresRequired", 0)),
        accelerators=float(requirements.get("NumberOfAcceleratorDevicesRequired", 0)),
        memory_mb=float(requirements.get("MinMemoryRequiredInMb", 0)),
    )


def too_large_message(need: Resources, instance_type: str) -> str:
    """Return the error for a copy that does not fit on an empty instance."""
    whole = resources_of_type(instance_type)
    return f"A copy needs {need}; an instance of type {instance_type} has {whole}."
