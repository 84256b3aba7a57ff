"""A model host on a machine without processes: workers are ready at once, and a table says what they take."""

from dataclasses import dataclass, field

from headrace.platform.cluster.launcher import Handle, WorkerSpec
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.platform.cluster.model_host.processes import ModelProcesses
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine, ManualClock

LIMIT_BYTES = 300 << 20
MODEL_BYTES = 100 << 20


@dataclass
class HostScene:
    """A host, its machine, and the memory of its models."""

    machine: FakeMachine = field(default_factory=FakeMachine)
    clock: ManualClock = field(default_factory=ManualClock)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    """Memory of each model while it is being loaded, if that is more."""
    ended: list[str] = field(default_factory=list)

    def host(
        self, *, load_timeout_s: float = 100.0, max_models: int | None = None, is_forgetting: bool = True
    ) -> ModelHost:
        processes = ModelProcesses(
            launcher=FakeLauncher(self.machine),
            measure=self.measured,
            measure_peak=lambda handle: max(self.measured(handle), self.peak_bytes),
            load_timeout_s=load_timeout_s,
            on_ended=self.ended.append,
            clock=self.clock,
        )
        return ModelHost(processes, limit_bytes=LIMIT_BYTES, max_models=max_models, is_forgetting=is_forgetting)

    def measured(self, handle: Handle) -> int:
        worker = next(worker for worker in self.machine.workers.values() if worker.handle == handle)
        return self.memory_bytes.get(worker.spec.environment["NAME"], MODEL_BYTES)

    def running(self) -> list[str]:
        return [worker.spec.environment["NAME"] for worker in self.machine.living()]


def model(name: str, *, is_pinned: bool = False, ttl_s: float | None = None) -> HostedModel:
    spec = WorkerSpec(name="", environment={"NAME": name})
    url = f"s3://b/models/{name}"
    return HostedModel(name=name, url=url, spec=spec, num_bytes=1, is_pinned=is_pinned, ttl_s=ttl_s)
