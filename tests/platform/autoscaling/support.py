"""A simulated variant whose time passes when a test says so."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.loops.autoscaler import Autoscaler
from headrace.platform.autoscaling.planning.targets import VARIANT_DIMENSION
from headrace.platform.autoscaling.records.capacity import read_capacity
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.model.endpoint import (
    ENDPOINT,
    EndpointRecord,
    EndpointRevision,
    EndpointSpec,
    EndpointStatus,
)
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import ready_key
from headrace.platform.control.planning.plan import plan_deployable
from headrace.platform.control.planning.rollout import wanted_workers
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import Record
from headrace.platform.state.store import Store, open_store
from tests.platform.control.planning.world import pass_context
from tests.platform.control.support import AWS_SCOPE, ListedLogs

START_S = 1_700_000_040.0
RESOURCE = "endpoint/e/variant/a"
IDLE_S = 300.0
"""Idle time of serverless variants."""
IDENTITY = {"ServiceNamespace": "sagemaker", "ResourceId": RESOURCE, "ScalableDimension": VARIANT_DIMENSION}
DIMENSIONS = (("EndpointName", "e"), ("VariantName", "a"))
CONCURRENCY = Metric(namespace="AWS/SageMaker", name="ConcurrentRequestsPerModel", dimensions=DIMENSIONS)
INVOCATIONS = Metric(namespace="AWS/SageMaker", name="InvocationsPerInstance", dimensions=DIMENSIONS)


@dataclass
class World:
    """An endpoint with one variant; its workers come as soon as time passes."""

    count: int = 1
    endpoint: str = "e"
    variant: str = "a"
    now_s: float = START_S
    serverless: dict[str, int] | None = None
    """The `ServerlessConfig` of the variant, instead of instances."""
    room: int = 1000
    """Workers that find a place."""
    load: Callable[[int], float | None] = lambda _serving: None
    """Requests at a time per instance, given how many serve; None: nothing is measured."""
    capacities: list[int] = field(default_factory=list)
    """What was wanted, each time that it changed."""
    store: Store = field(init=False)
    series: MemorySeries = field(default_factory=MemorySeries)
    _is_changed: bool = True
    """Something was written since the last reconciling."""
    _seen_room: int = 1000
    """The room at that time."""

    def __post_init__(self) -> None:
        self.store = open_store("sqlite://", now_s=lambda: self.now_s)
        self.store.subscribe(self._note_change)
        self.scaler = Autoscaler(
            store=self.store,
            series=self.series,
            aws_scope=AWS_SCOPE,
            serverless_idle_s=IDLE_S,
            clock=lambda: self.now_s,
        )
        instances = {"InstanceType": "ml.m5.large", "InitialInstanceCount": self.count}
        kind = instances if self.serverless is None else {"ServerlessConfig": self.serverless}
        variant = {"VariantName": self.variant, "ModelName": "m", **kind}
        config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
        revision = EndpointRevision(number=1, config=config, models={"m": {}})
        self.store.create(ENDPOINT, self.endpoint, spec=EndpointSpec(generation=1, revision=revision))
        self.reconcile()

    @property
    def identity(self) -> dict[str, str]:
        """The members that identify the variant's scalable target."""
        return {**IDENTITY, "ResourceId": f"endpoint/{self.endpoint}/variant/{self.variant}"}

    def metric(self, name: str) -> Metric:
        """One of the variant."""
        dimensions = (("EndpointName", self.endpoint), ("VariantName", self.variant))
        return Metric(namespace=CONCURRENCY.namespace, name=name, dimensions=dimensions)

    def call(self, operation: str, service: str = "application-autoscaling", **params: Any) -> dict[str, Any]:
        """Ask as a client does."""
        context = CallContext(
            store=self.store,
            logs=ListedLogs(),
            aws_scope=AWS_SCOPE,
            now_s=self.now_s,
        )
        return OPERATIONS[service, operation](context, params)

    def register(self, minimum: int = 1, maximum: int = 10, **more: Any) -> None:
        self.call("RegisterScalableTarget", **self.identity, MinCapacity=minimum, MaxCapacity=maximum, **more)

    def put_policy(self, name: str = "p", **config: Any) -> dict[str, Any]:
        return self.call("PutScalingPolicy", **self.identity, PolicyName=name, **config)

    def activities(self, *, with_not_scaled: bool = False) -> list[dict[str, Any]]:
        """Oldest first."""
        found = self.call(
            "DescribeScalingActivities", ServiceNamespace="sagemaker", IncludeNotScaledActivities=with_not_scaled
        )
        return list(reversed(found["ScalingActivities"]))

    def reconcile(self) -> None:
        """Give the endpoint all workers that it wants."""
        record = self.store.get(ENDPOINT, self.endpoint)
        if not isinstance(record, Record):
            return
        for _ in range(3):
            workers = self._workers(record)
            plan = plan_deployable(record, workers, pass_context(self.now_s))
            assert plan.deployment is not None
            ready = {ready_key(*fleet): count for fleet, count in wanted_workers(plan.deployment).items()}
            status = EndpointStatus(
                progress=plan.deployment.progress, revisions=dict(plan.deployment.revisions), ready=ready
            )
            if status == record.status:
                return
            record = self.store.update(record, status=status)

    def pass_time(self, seconds: float) -> None:
        """Measure and scale every ten seconds; reconcile after writes, and where there is more or less room."""
        key = read_key(self.identity)
        capacity = read_capacity(self.store, key)
        for _ in range(int(seconds // 10)):
            self.now_s += 10
            value = self.load(capacity.in_service if capacity is not None else 0)
            if value is not None:
                self.series.put(self.metric(CONCURRENCY.name), value, now_s=self.now_s - 5)
            self.scaler.run_pass()
            if self._is_changed or self._seen_room != self.room:
                self._is_changed, self._seen_room = False, self.room
                self.reconcile()
                capacity = read_capacity(self.store, key)
            if capacity is not None and self.capacities[-1:] != [capacity.desired]:
                self.capacities.append(capacity.desired)

    def _note_change(self) -> None:
        self._is_changed = True

    def close(self) -> None:
        self.store.close()

    def worker(self, variant: str, revision: int, number: int = 0) -> WorkerView:
        """A worker that serves."""
        return WorkerView(
            name=f"w{number}",
            variant=variant,
            revision=revision,
            created_s=START_S,
            phase=WorkerPhase.READY,
            ready_s=START_S,
            url="http://x",
        )

    def _workers(self, record: EndpointRecord) -> list[WorkerView]:
        revision = record.spec.revision
        (asked,) = revision.workloads
        return [self.worker(self.variant, revision.number, number) for number in range(min(asked.count, self.room))]
