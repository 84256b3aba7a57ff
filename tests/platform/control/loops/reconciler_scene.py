"""A reconciler with fake workers, a real store and a manual clock."""

from dataclasses import dataclass, field
from typing import Any

from headrace.platform.control.loops.reconciler import Reconciler
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord, EndpointRevision, EndpointSpec
from headrace.platform.control.model.workload import State, visible_state
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.state.records import Record
from headrace.platform.state.routes import ROUTE
from headrace.platform.state.store import Store, open_store
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine, ManualClock, ready_after
from tests.platform.control.support import IMAGE, ListedLogs, reconciler_of

MODELS = {"m": {"ModelName": "m", "PrimaryContainer": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2"}}}}


@dataclass
class Scene:
    """A store, a machine and the time."""

    clock: ManualClock = field(default_factory=ManualClock)
    jumped_s: float = 0.0
    """How far the wall clock is from the monotonic one."""

    def __post_init__(self) -> None:
        self.store: Store = open_store("sqlite://", now_s=self.clock)
        self.machine = FakeMachine(
            clock=self.monotonic_s, script=lambda _spec: ready_after(3.0, fetch_s=1.0, stop_s=2.0)
        )
        self.logs = ListedLogs()
        self.reconciler = self.born()

    def born(self, launcher: FakeLauncher | None = None) -> Reconciler:
        """Another life of the platform."""
        return reconciler_of(
            self.store,
            self.machine,
            logs=self.logs,
            clock=self.clock,
            config=ReconcilerConfig(),
            launcher=launcher,
            monotonic=self.monotonic_s,
        )

    def monotonic_s(self) -> float:
        return self.clock() - self.jumped_s

    def jump(self, seconds: float) -> None:
        """Move the wall clock without the time that it measures."""
        self.clock.advance(seconds)
        self.jumped_s += seconds

    def ask(
        self, name: str = "e", *, count: int = 1, number: int = 1, deployment: dict[str, Any] | None = None
    ) -> None:
        """Create the endpoint, or update it."""
        config = {
            "EndpointConfigName": "c",
            "ProductionVariants": [
                {"VariantName": "a", "ModelName": "m", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": count}
            ],
        }
        revision = EndpointRevision(number=number, config=config, models=MODELS, deployment=deployment or {})
        spec = EndpointSpec(generation=number, revision=revision)
        found = self.store.get(ENDPOINT, name)
        if found is None:
            self.store.create(ENDPOINT, name, spec=spec)
        else:
            self.store.update(found, spec=spec)

    async def settle(self, seconds: float = 10.0, *, pause_s: float = 0.5) -> None:
        """Passes, and time between them."""
        for _ in range(int(seconds / pause_s)):
            self.clock.advance(pause_s)
            await self.reconciler.pass_once()

    def endpoint(self, name: str = "e") -> EndpointRecord:
        found = self.store.get(ENDPOINT, name)
        assert isinstance(found, Record)
        return found

    def state(self, name: str = "e") -> State:
        return visible_state(self.endpoint(name))

    def reason(self, name: str = "e") -> str:
        progress = self.endpoint(name).status.progress
        assert progress is not None
        return progress.failure_reason

    def living(self) -> list[str]:
        return sorted(worker.spec.name for worker in self.machine.living())

    def replicas(self) -> list[str]:
        route = self.store.get(ROUTE, "e")
        assert route is not None
        variants = route.spec.variants
        return [replica.worker for variant in variants for fleet in variant.fleets for replica in fleet.replicas]
