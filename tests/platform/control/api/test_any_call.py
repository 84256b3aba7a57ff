"""Handlers answer all requests that the models allow, and the planner can act on the records that they write."""

import re
from typing import Any

from botocore.model import ListShape, Shape, StructureShape
from botocore.validate import ParamValidator
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.model.definitions import MODEL
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointStatus
from headrace.platform.control.model.names import arn_of
from headrace.platform.control.model.packages import MODEL_PACKAGE
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.planning.plan import plan_deployable
from headrace.platform.control.planning.rollout import wanted_workers
from headrace.platform.control.planning.worker_build import WorkerDefaults, build_worker
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import copy_part
from headrace.platform.state.routes import VariantRoute
from headrace.platform.state.store import Store, open_store
from headrace.serving.wire.aws import calls, services, validation
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import AwsCall
from tests.platform.control.planning.world import pass_context
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE, ListedLogs, share_of

NOW_S = 1_700_000_000.0
DEFAULTS = WorkerDefaults(share_of=share_of)
KNOWN = {
    "ModelName": st.sampled_from(["m", "M2"]),
    "EndpointName": st.sampled_from(["e", "e", "E2"]),
    "EndpointConfigName": st.sampled_from(["c", "c", "c2"]),
    "VariantName": st.sampled_from(["v", "w"]),
    "ContainerImage": st.sampled_from([IMAGE, "my/server:1"]),
    "RoleArn": st.just(ROLE),
    "ResourceArn": st.builds(arn_of, st.just(AWS_SCOPE), st.sampled_from([MODEL, ENDPOINT]), st.just("m")),
    "ArnOrName": st.just("g"),
    "EntityName": st.sampled_from(["g", "p"]),
    "ModelCardNameOrArn": st.sampled_from(["g", "p"]),
    "ModelCardContent": st.just("{}"),
    "VersionedArnOrName": st.sampled_from(["g/1", "p"]),
    "ModelPackageArn": st.builds(arn_of, st.just(AWS_SCOPE), st.just(MODEL_PACKAGE), st.sampled_from(["g/1", "p"])),
    "ProductionVariantInstanceType": st.sampled_from(["ml.m5.large", "ml.g5.xlarge"]),
    "Url": st.sampled_from(["s3://bucket/key.tar.gz", "s3://bucket/prefix/"]),
    "DestinationS3Uri": st.just("s3://bucket/out"),
    "roleNameType": st.sampled_from(["r", "s"]),
    "policyDocumentType": st.just('{"Statement": []}'),
    "arnType": st.sampled_from(["arn:aws:iam::123456789012:policy/p", "arn:aws:iam::123456789012:role/r"]),
    "policyNameType": st.just("p"),
    "DashboardName": st.sampled_from(["d", "e"]),
    "LogGroupName": st.just("/aws/sagemaker/Endpoints/e"),
    "AlarmName": st.sampled_from(["a", "b"]),
    "AmazonResourceName": st.sampled_from([f"arn:aws:cloudwatch:us-east-1:123456789012:alarm:{name}" for name in "ab"]),
    "MetricId": st.sampled_from(["m1", "m2"]),
    "MetricExpression": st.sampled_from(["m1 / m2", "METRICS()", "m1 +"]),
    "Period": st.sampled_from([10, 60, 300, 45]),
    "Stat": st.sampled_from(["Sum", "p90", "Mode"]),
    "ServerlessMemorySizeInMB": st.sampled_from([1024, 6144]),
    "InitialTaskCount": st.integers(1, 3),
    "TaskCount": st.integers(0, 3),
}
"""Strategies for shapes whose values should meet."""
ANY_TEXT = r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*"
"""A pattern for which Hypothesis would take five CPU seconds: it lists all characters."""
NUMBERS = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def valid(shape: Shape, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a shape that mostly keep to its constraints."""
    if shape.name in KNOWN:
        return KNOWN[shape.name]
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure":
        return structure(shape, depth)
    if kind == "list":
        least = max(1, int(limits.get("min", 0)))
        most = max(least, min(2, int(limits.get("max", 2))))
        return st.lists(st.deferred(lambda: valid(shape.member, depth + 1)), min_size=least, max_size=most)
    if kind == "map":
        return st.dictionaries(st.just("KEY"), st.deferred(lambda: valid(shape.value, depth + 1)), max_size=1)
    return scalar(shape)


def scalar(shape: Shape) -> st.SearchStrategy[Any]:
    kind, limits = shape.type_name, shape.metadata
    if limits.get("enum"):
        return st.sampled_from(list(limits["enum"]))
    if kind in NUMBERS:
        least, most = NUMBERS[kind]
        return st.integers(int(limits.get("min", least)), int(limits.get("max", most)))
    if kind in ("float", "double"):
        return st.floats(float(limits.get("min", 0.0)), 1e6, width=32)
    if kind == "boolean":
        return st.booleans()
    if kind == "timestamp":
        return st.floats(0, 4e9)
    return text(limits)


def text(limits: dict[str, Any]) -> st.SearchStrategy[str]:
    pattern = limits.get("pattern")
    if pattern is None or "\\p" in pattern:
        return st.text("abc", min_size=max(1, int(limits.get("min", 1))), max_size=max(4, int(limits.get("min", 1))))
    if pattern == ANY_TEXT:
        return st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"))
    return st.from_regex(validation.compiled(pattern) or re.compile(pattern, re.ASCII), fullmatch=True)


def structure(shape: Any, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    members = {
        name: st.deferred(lambda member=member: valid(member, depth + 1)) for name, member in shape.members.items()
    }
    required = {name: members.pop(name) for name in shape.required_members}
    names = st.lists(st.sampled_from(sorted(members)), unique=True, max_size=4) if members else st.just([])
    return names.flatmap(lambda picked: st.fixed_dictionaries(required | {name: members[name] for name in picked}))


def call_of(service: str, operation: str) -> st.SearchStrategy[AwsCall]:
    model = services.operation(service, operation)
    params = structure(model.input_shape, 0) if model.input_shape is not None else st.just({})
    return params.map(
        lambda given: AwsCall(service, operation, "query" if service in ("sts", "iam") else "json", given)
    )


def mended(call: AwsCall) -> AwsCall:
    """The call without what would be refused at first sight."""
    params = dict(call.params)
    if call.operation == "CreateModel":
        params.pop("Containers", None)
        container = params.get("PrimaryContainer") or {}
        refused = ("ModelPackageName", "InferenceSpecificationName", "MultiModelConfig", "Mode", "ModelDataSource")
        params["PrimaryContainer"] = {"Image": IMAGE} | {
            name: value for name, value in container.items() if name not in refused
        }
    if call.operation == "CreateEndpointConfig":
        for name in ("ShadowProductionVariants", "ExplainerConfig"):
            params.pop(name, None)
        if "AsyncInferenceConfig" in params:
            params["AsyncInferenceConfig"]["OutputConfig"]["S3OutputPath"] = "s3://b/out"
        params["ProductionVariants"] = [
            mended_variant(variant, name)
            for variant, name in zip(params["ProductionVariants"], ("v", "w"), strict=False)
        ]
    if "RollingUpdatePolicy" in params.get("DeploymentConfig", {}):
        params["DeploymentConfig"] = {"RollingUpdatePolicy": params["DeploymentConfig"]["RollingUpdatePolicy"]}
    return AwsCall(call.service, call.operation, call.protocol, params)


def mended_variant(variant: dict[str, Any], name: str) -> dict[str, Any]:
    refused = ("InstancePools", "InstanceType", "InitialInstanceCount") if "ServerlessConfig" in variant else ()
    kept = {member: value for member, value in variant.items() if member not in refused}
    if "ServerlessConfig" not in kept and "InstancePools" not in kept:
        kept["InstanceType"] = "ml.m5.large"
    elif "InstancePools" in kept:
        kept.pop("InstanceType", None)
        for pool in kept["InstancePools"]:
            pool.pop("ModelNameOverride", None)
    return {**kept, "VariantName": name, "ModelName": "m"}


CALLS = st.sampled_from(sorted(OPERATIONS)).flatmap(lambda pair: call_of(*pair))
MAKING = (
    "CreateModel",
    "CreateEndpointConfig",
    "CreateEndpoint",
    "UpdateEndpoint",
    "UpdateEndpointWeightsAndCapacities",
    "DescribeEndpoint",
)
MORE_OF_THESE = st.sampled_from(MAKING).flatmap(lambda name: call_of("sagemaker", name).map(mended))
BEGINNING = (
    AwsCall("sagemaker", "CreateModel", "json", {"ModelName": "m", "PrimaryContainer": {"Image": IMAGE}}),
    AwsCall(
        "sagemaker",
        "CreateEndpointConfig",
        "json",
        {
            "EndpointConfigName": "c",
            "ProductionVariants": [{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}],
        },
    ),
    AwsCall("sagemaker", "CreateEndpoint", "json", {"EndpointName": "e", "EndpointConfigName": "c"}),
)


def known(value: Any, shape: Shape) -> Any:
    """The members of a result that the model has: records that are only stored answer with all that they have."""
    if isinstance(shape, StructureShape):
        return {name: known(value[name], shape.members[name]) for name in value.keys() & shape.members.keys()}
    return [known(item, shape.member) for item in value] if isinstance(shape, ListShape) else value


def answer(store: Store, call: AwsCall) -> None:
    """Call a handler; its answer keeps to the model."""
    model = services.operation(call.service, call.operation)
    context = CallContext(
        store=store,
        logs=ListedLogs(),
        aws_scope=AWS_SCOPE,
        now_s=NOW_S,
    )
    try:
        validation.check(model, call.params)
        result = OPERATIONS[call.service, call.operation](context, call.params)
    except AwsError as error:
        if error.http_status < 500:
            return
        raise
    assert calls.render(call, result, "r").status == 200
    if model.output_shape is not None:
        unnamed = {"ModelPackageName": "g"} if call.operation == "DescribeModelPackage" else {}  # a version, as on AWS
        report = ParamValidator().validate({**unnamed, **known(result, model.output_shape)}, model.output_shape)
        assert not report.has_errors(), report.generate_report()


def act(store: Store) -> None:
    """Every endpoint can be planned, its workers built; once these serve, it is in service."""
    for record in store.list(ENDPOINT):
        workers: list[WorkerView] = []
        for _ in range(40):
            plan = plan_deployable(record, workers, pass_context(NOW_S))
            if plan.deployment is None:
                store.remove(record)
                break
            assert all(copy_part(route, VariantRoute) == route for route in plan.variants)
            status = EndpointStatus(progress=plan.deployment.progress, revisions=dict(plan.deployment.revisions))
            before = (record.status, workers)
            workers = [serving(fleet, n) for fleet, num in wanted_workers(plan.deployment).items() for n in range(num)]
            if before == (status, workers):
                break  # at rest: every further plan is the same
            record = store.update(record, status=status)  # noqa: PLW2901 -- the same one, later
            for worker in workers[:1]:
                workload = plan.deployment.revisions[worker.revision].workload(worker.variant)
                assert workload is not None
                build_worker("w", workload, DEFAULTS)


def serving(fleet: tuple[str, int], number: int) -> WorkerView:
    variant, revision = fleet
    return WorkerView(
        name=f"{variant}-{revision}-{number}",
        variant=variant,
        revision=revision,
        created_s=NOW_S,
        phase=WorkerPhase.READY,
        ready_s=NOW_S,
        url="http://127.0.0.1:1",
    )


WITHOUT_TARGET = {
    "AIBenchmarkJobName": "bench",
    "BenchmarkTarget": {},  # a union without a member
    "OutputConfig": {"S3OutputLocation": "s3://jobs/benchmarks/"},
    "AIWorkloadConfigIdentifier": "load",
    "RoleArn": "arn:aws:iam::000000000000:role/any",
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(asked=st.lists(st.one_of(CALLS, MORE_OF_THESE), max_size=10))
@example(asked=[AwsCall("sagemaker", "CreateAIBenchmarkJob", "json", WITHOUT_TARGET)])
def test_any_valid_calls_are_answered_and_their_records_can_be_planned(asked: list[AwsCall]) -> None:
    store = open_store("sqlite://")
    try:
        for call in (*BEGINNING, *asked):
            answer(store, call)
            act(store)
    finally:
        store.close()
