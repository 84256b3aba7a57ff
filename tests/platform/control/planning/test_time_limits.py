"""Time limits of workers: which one a worker has passed."""

import pytest

from headrace.platform.control.model.endpoint import EndpointRevision
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.planning.worker_actions import overdue_reason
from tests.platform.control.planning.world import pass_context


@pytest.mark.parametrize(
    ("provision_s", "now_s", "is_overdue"),
    [(None, 239, False), (None, 241, True), (300, 299, False), (300, 301, True), (3600, 3599, False)],
)
def test_a_worker_waits_for_resources_as_long_as_its_variant_says(
    provision_s: int | None, now_s: int, is_overdue: bool
) -> None:
    member = {} if provision_s is None else {"VariantInstanceProvisionTimeoutInSeconds": provision_s}
    variant = {"VariantName": "v", "InstanceType": "ml.g5.xlarge", "ModelName": "m", **member}
    config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    revision = EndpointRevision(number=1, config=config, models={"m": {"PrimaryContainer": {}}})
    workload = revision.workloads[0]
    worker = WorkerView(name="w", variant="v", revision=1, created_s=0.0, phase=None, waiting="All GPUs are in use.")
    why = overdue_reason(worker, workload, pass_context(float(now_s)))
    assert bool(why) == is_overdue
    assert not why or why.endswith(f"within {provision_s or 240} s. All GPUs are in use.")
    assert revision.startup_bound_s == workload.download_timeout_s + workload.health_timeout_s + (provision_s or 0)
