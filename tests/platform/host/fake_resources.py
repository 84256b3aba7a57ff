"""SageMaker's resources as the console's calls see them; calls and answers are checked against botocore's models."""

# ruff: noqa: N802, N803 -- operations and their parameters have AWS's names

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

ACCOUNT = "123456789012"
NOW_S = 1_790_000_000.0
_SORTED = {"Name": "EndpointName", "CreationTime": "CreationTime", "Status": "EndpointStatus"}


class Refused(Exception):
    """An AWS error."""

    def __init__(self, message: str, *, code: str = "ValidationException", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status


@dataclass
class FakeResources:
    """The resources, the operations on them, and the calls that were received."""

    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Specification and number of copies of inference components."""
    overviews: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Endpoint → its components and where they are."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    """Stream → lines, of the endpoint that is asked about."""
    refusals: dict[str, Refused] = field(default_factory=dict)
    """Operation → what it answers from now on."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def add(self, name: str, status: str = "InService", **more: Any) -> dict[str, Any]:
        """An endpoint with one variant."""
        variant = {
            "VariantName": "AllTraffic",
            "CurrentWeight": 1.0,
            "DesiredWeight": 1.0,
            "CurrentInstanceCount": 1,
            "DesiredInstanceCount": 2,
            "DeployedImages": [{"SpecifiedImage": "tgi:3.3.6"}],
        }
        self.configs[name] = {"variants": [{"VariantName": "AllTraffic", "ModelName": name}], "tags": []}
        self.models[name] = {}
        self.endpoints[name] = {
            "EndpointName": name,
            "EndpointArn": arn("endpoint", name),
            "EndpointConfigName": name,
            "EndpointStatus": status,
            "CreationTime": NOW_S + len(self.endpoints),
            "LastModifiedTime": NOW_S + len(self.endpoints),
            "ProductionVariants": [variant],
            **more,
        }
        return self.endpoints[name]

    def call(self, service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        model = service_model(service).operation_model(operation)
        report = ParamValidator().validate(parameters, model.input_shape)
        assert not report.has_errors(), report.generate_report()
        self.calls.append((operation, parameters))
        if operation in self.refusals:
            raise self.refusals[operation]
        answer: dict[str, Any] | None = getattr(self, f"_{operation}")(**parameters)
        if answer is not None:
            report = ParamValidator().validate(answer, model.output_shape)
            assert not report.has_errors(), report.generate_report()
        return answer

    # The operations

    def _ListEndpoints(
        self,
        *,
        MaxResults: int,
        SortBy: str,
        SortOrder: str,
        NameContains: str = "",
        StatusEquals: str = "",
        NextToken: str = "0",
    ) -> dict[str, Any]:
        fitting = [
            endpoint
            for endpoint in self.endpoints.values()
            if NameContains in endpoint["EndpointName"] and StatusEquals in ("", endpoint["EndpointStatus"])
        ]
        fitting.sort(key=lambda endpoint: endpoint[_SORTED[SortBy]], reverse=SortOrder == "Descending")
        start = int(NextToken)
        names = ("EndpointName", "EndpointArn", "EndpointStatus", "CreationTime", "LastModifiedTime")
        page = [{name: endpoint[name] for name in names} for endpoint in fitting[start : start + MaxResults]]
        more = {"NextToken": str(start + MaxResults)} if start + MaxResults < len(fitting) else {}
        return {"Endpoints": page, **more}

    def _DescribeEndpoint(self, *, EndpointName: str) -> dict[str, Any]:
        return _found(self.endpoints, "endpoint", EndpointName)

    def _DescribeEndpointConfig(self, *, EndpointConfigName: str) -> dict[str, Any]:
        config = _found(self.configs, "endpoint-config", EndpointConfigName)
        return {
            "EndpointConfigName": EndpointConfigName,
            "EndpointConfigArn": arn("endpoint-config", EndpointConfigName),
            "ProductionVariants": config["variants"],
            "CreationTime": NOW_S,
            **config.get("others", {}),
        }

    def _DescribeModel(self, *, ModelName: str) -> dict[str, Any]:
        model = {name: value for name, value in _found(self.models, "model", ModelName).items() if name != "Tags"}
        return {"ModelName": ModelName, "ModelArn": arn("model", ModelName), "CreationTime": NOW_S, **model}

    def _ListModels(self, *, MaxResults: int, SortBy: str, SortOrder: str, NextToken: str = "0") -> dict[str, Any]:
        assert (SortBy, SortOrder) == ("CreationTime", "Descending")
        start, names = int(NextToken), list(self.models)[::-1]
        page = [
            {"ModelName": name, "ModelArn": arn("model", name), "CreationTime": NOW_S}
            for name in names[start : start + MaxResults]
        ]
        more = {"NextToken": str(start + MaxResults)} if start + MaxResults < len(names) else {}
        return {"Models": page, **more}

    def _ListTags(self, *, ResourceArn: str) -> dict[str, Any]:
        name = ResourceArn.rpartition("/")[2]
        return {"Tags": self.models[name].get("Tags", []) if ":model/" in ResourceArn else self.configs[name]["tags"]}

    def _CreateModel(self, *, ModelName: str, **more: Any) -> dict[str, Any]:
        if ModelName in self.models:
            raise Refused(f'Cannot create already existing model "{arn("model", ModelName)}".')
        self.models[ModelName] = more
        return {"ModelArn": arn("model", ModelName)}

    def _CreateEndpointConfig(
        self,
        *,
        EndpointConfigName: str,
        ProductionVariants: list[Any],
        Tags: list[Any],
        **others: Any,
    ) -> dict[str, Any]:
        self.configs[EndpointConfigName] = {"variants": ProductionVariants, "tags": Tags, "others": others}
        return {"EndpointConfigArn": arn("endpoint-config", EndpointConfigName)}

    def _CreateEndpoint(self, *, EndpointName: str, EndpointConfigName: str, Tags: list[Any]) -> dict[str, Any]:
        configs, models = dict(self.configs), dict(self.models)
        assert Tags
        self.add(EndpointName, "Creating")["EndpointConfigName"] = EndpointConfigName
        self.configs, self.models = configs, models
        return {"EndpointArn": arn("endpoint", EndpointName)}

    def _UpdateEndpointWeightsAndCapacities(
        self, *, EndpointName: str, DesiredWeightsAndCapacities: list[dict[str, Any]]
    ) -> dict[str, Any]:
        [wanted] = DesiredWeightsAndCapacities
        [variant] = _found(self.endpoints, "endpoint", EndpointName)["ProductionVariants"]
        variant["DesiredInstanceCount"] = wanted["DesiredInstanceCount"]
        return {"EndpointArn": arn("endpoint", EndpointName)}

    def _DeleteEndpoint(self, *, EndpointName: str) -> None:
        _found(self.endpoints, "endpoint", EndpointName)
        del self.endpoints[EndpointName]

    def _DeleteEndpointConfig(self, *, EndpointConfigName: str) -> None:
        _found(self.configs, "endpoint-config", EndpointConfigName)
        del self.configs[EndpointConfigName]

    def _DeleteModel(self, *, ModelName: str) -> None:
        _found(self.models, "model", ModelName)
        del self.models[ModelName]

    def _CreateInferenceComponent(self, *, InferenceComponentName: str, **more: Any) -> dict[str, Any]:
        copies = {"DesiredCopyCount": more["RuntimeConfig"]["CopyCount"]}
        self.components[InferenceComponentName] = {"Specification": more["Specification"], "RuntimeConfig": copies}
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _DescribeInferenceComponent(self, *, InferenceComponentName: str) -> dict[str, Any]:
        names = ("inference-component", InferenceComponentName)
        return {
            "InferenceComponentName": InferenceComponentName,
            "InferenceComponentArn": arn(*names),
            "EndpointName": "host",
            "EndpointArn": arn("endpoint", "host"),
            "VariantName": "AllTraffic",
            "CreationTime": NOW_S,
            "LastModifiedTime": NOW_S,
            **_found(self.components, *names),
        }

    def _UpdateInferenceComponent(
        self, *, InferenceComponentName: str, Specification: dict[str, Any], RuntimeConfig: dict[str, Any]
    ) -> dict[str, Any]:
        copies = {"DesiredCopyCount": RuntimeConfig["CopyCount"]}
        self.components[InferenceComponentName] = {"Specification": Specification, "RuntimeConfig": copies}
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _UpdateInferenceComponentRuntimeConfig(
        self, *, InferenceComponentName: str, DesiredRuntimeConfig: dict[str, Any]
    ) -> dict[str, Any]:
        for overview in self.overviews.values():
            for component in overview["components"]:
                if component["name"] == InferenceComponentName:
                    component["desired"] = DesiredRuntimeConfig["CopyCount"]
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _DeleteInferenceComponent(self, *, InferenceComponentName: str) -> None:
        self.components.pop(InferenceComponentName, None)
        for overview in self.overviews.values():
            overview["components"] = [
                component for component in overview["components"] if component["name"] != InferenceComponentName
            ]

    def _DescribeLogStreams(self, *, logGroupName: str, **_order: Any) -> dict[str, Any]:
        assert logGroupName.startswith(("/aws/sagemaker/Endpoints/", "/aws/sagemaker/InferenceComponents/"))
        if not self.logs:
            raise Refused("The specified log group does not exist.", code="ResourceNotFoundException")
        return {"logStreams": [{"logStreamName": name} for name in self.logs]}

    def _GetLogEvents(
        self,
        *,
        logGroupName: str,
        logStreamName: str,
        startFromHead: bool,
        nextToken: str | None = None,
        limit: int = 10_000,
    ) -> dict[str, Any]:
        assert logGroupName
        lines = self.logs[logStreamName]
        start = int(nextToken) if nextToken else max(0, len(lines) - limit)
        assert startFromHead == (nextToken is not None)
        at_ms = int(NOW_S * 1000)
        events = [{"timestamp": at_ms + number, "message": lines[number]} for number in range(start, len(lines))]
        return {"events": events, "nextForwardToken": str(len(lines)), "nextBackwardToken": "0"}


def arn(kind: str, name: str) -> str:
    return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{kind}/{name}"


@cache
def service_model(name: str) -> ServiceModel:
    return ServiceModel(Loader().load_service_model(name, "service-2"))


def _found(records: dict[str, dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    if name not in records:
        raise Refused(f'Could not find {kind} "{arn(kind, name)}".')
    return records[name]
