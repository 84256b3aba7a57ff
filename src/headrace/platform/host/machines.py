"""The machines of a platform, as the console shows them."""

import os
from collections.abc import Iterable, Sequence

import msgspec

from headrace.core.host_memory import available_memory_bytes, total_memory_bytes
from headrace.platform.cluster.instance_types import Host

MACHINE = "machine"
"""The question for the machine of a process."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a machine, and how much of them is in use."""

    num_cores: int
    load: float
    """Processes that run or wait for a core, averaged over a minute."""
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[str, ...] = ()
    cluster: str = "local"
    """The setting `cluster`: where workers run."""
    name: str = ""
    """The address that it advertises; empty: the platform is on one machine."""
    leads: bool = False
    """True if one of its processes leads the platform."""


def this_machine(host: Host, cluster: str, *, name: str = "", leads: bool = False) -> Machine:
    """Return this machine as it is now; `host` was read when the platform started."""
    return Machine(
        num_cores=host.num_cores,
        load=os.getloadavg()[0],
        memory_bytes=total_memory_bytes(),
        free_memory_bytes=available_memory_bytes(),
        gpus=tuple(gpu.name for gpu in host.gpus),
        cluster=cluster,
        name=name,
        leads=leads,
    )


def distinct(own: Machine, answers: Iterable[object]) -> list[Machine]:
    """Return the machines of all processes, each once, by name; an answer of another version is left out."""
    found = {own.name: own}
    for answer in answers:
        try:
            machine = msgspec.convert(answer, Machine)
        except msgspec.ValidationError:
            continue
        found.setdefault(machine.name, machine)
    return [found[name] for name in sorted(found)]


def together(machines: Sequence[Machine]) -> Machine:
    """Return the resources of several machines as those of one."""
    return Machine(
        num_cores=sum(machine.num_cores for machine in machines),
        load=sum(machine.load for machine in machines),
        memory_bytes=sum(machine.memory_bytes for machine in machines),
        free_memory_bytes=sum(machine.free_memory_bytes for machine in machines),
        gpus=tuple(gpu for machine in machines for gpu in machine.gpus),
        cluster=machines[0].cluster,
    )
