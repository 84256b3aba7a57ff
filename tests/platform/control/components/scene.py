"""Components through handlers and reconciler, with fake copies, a real store and a manual clock."""

from collections import Counter
from typing import Any

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.control.api.components import (
    create_inference_component,
    delete_inference_component,
    describe_inference_component,
    update_inference_component,
    update_runtime_config,
)
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.definitions import create_endpoint_config, create_model
from headrace.platform.control.api.endpoints import create_endpoint, describe_endpoint
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.state.records import Record
from headrace.platform.state.routes import ROUTE
from headrace.platform.state.store import open_store
from headrace.testing.fake_launcher import FakeMachine, ManualClock, fails_after, ready_after
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE, ListedLogs, reconciler_of

NEED = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024}
TYPE = "ml.p3.8xlarge"


class Scene:
    """A store, a machine and the time; one endpoint `ep` for components."""

    def __init__(self, *, is_strict: bool = False) -> None:
        self.clock = ManualClock()
        self.store = open_store("sqlite://", now_s=self.clock)
        self.machine = FakeMachine(clock=self.clock, script=self._script)
        self.reconciler = reconciler_of(self.store, self.machine, clock=self.clock)
        self.is_strict = is_strict
        for name in ("m", "n", "bad"):
            container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": name}}
            create_model(self.context, {"ModelName": name, "PrimaryContainer": container, "ExecutionRoleArn": ROLE})

    def _script(self, spec: WorkerSpec) -> Any:
        return fails_after(message="It is bad.") if spec.environment["HF_MODEL_ID"] == "bad" else ready_after(1.0)

    @property
    def context(self) -> CallContext:
        return CallContext(
            store=self.store,
            logs=ListedLogs(),
            aws_scope=AWS_SCOPE,
            now_s=self.clock(),
            is_strict=self.is_strict,
        )

    def config(self, name: str = "ep", **variant: Any) -> None:
        production = {"VariantName": "v", "InstanceType": TYPE, "InitialInstanceCount": 1, **variant}
        params = {"EndpointConfigName": name, "ExecutionRoleArn": ROLE, "ProductionVariants": [production]}
        create_endpoint_config(self.context, params)

    async def host(self, **variant: Any) -> None:
        self.config(**variant)
        create_endpoint(self.context, {"EndpointName": "ep", "EndpointConfigName": "ep"})
        await self.settle(1)

    def create(self, name: str, *, copies: int = 1, model: str = "m", **more: Any) -> None:
        specification = {"ModelName": model, "ComputeResourceRequirements": NEED}
        params: dict[str, Any] = {"Specification": specification} if "Specifications" not in more else {}
        params |= {"InferenceComponentName": name, "EndpointName": "ep", "RuntimeConfig": {"CopyCount": copies}}
        create_inference_component(self.context, {**params, **more})

    def update(self, name: str, model: str, **deployment: Any) -> None:
        params = {
            "InferenceComponentName": name,
            "Specification": {"ModelName": model, "ComputeResourceRequirements": NEED},
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": 0,
                },
                **deployment,
            },
        }
        update_inference_component(self.context, params)

    def scale(self, name: str, copies: int) -> None:
        params = {"InferenceComponentName": name, "DesiredRuntimeConfig": {"CopyCount": copies}}
        update_runtime_config(self.context, params)

    def delete(self, name: str) -> None:
        delete_inference_component(self.context, {"InferenceComponentName": name})

    def seen(self, name: str) -> dict[str, Any]:
        return describe_inference_component(self.context, {"InferenceComponentName": name})

    def status(self, name: str) -> tuple[str, int]:
        found = self.seen(name)
        return found["InferenceComponentStatus"], found["RuntimeConfig"]["CurrentCopyCount"]

    def counts(self) -> dict[str, Any]:
        (variant,) = describe_endpoint(self.context, {"EndpointName": "ep"})["ProductionVariants"]
        return dict(variant)

    def num_instances(self) -> int:
        return int(self.counts()["CurrentInstanceCount"])

    def record(self, name: str) -> Record:
        found = self.store.get(INFERENCE_COMPONENT, name)
        assert found is not None
        return found

    def copies(self) -> Counter[str]:
        """Component -> copies that are routed to."""
        route = self.store.get(ROUTE, "ep")
        assert route is not None
        routed = route.spec.components
        return Counter(
            {component.name: sum(len(fleet.replicas) for fleet in component.route.fleets) for component in routed}
        )

    async def settle(self, seconds: float = 8.0, *, pause_s: float = 0.5) -> None:
        """Passes, and time between them."""
        for _ in range(int(seconds / pause_s)):
            self.clock.advance(pause_s)
            await self.reconciler.pass_once()
