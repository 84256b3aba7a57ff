"""Changes that UpdateEndpoint refuses, as on AWS: of how an endpoint is invoked, and of how its variants run. Pure."""

from headrace.state.records import Json
from headrace.wire.aws.errors import validation_error


def refuse_other_kind(endpoint: str, old: Json, new: Json) -> None:
    """
    Refuse a configuration by which an endpoint would become another kind of endpoint.

    Clients of an asynchronous endpoint wait for objects, and those of another one for responses. A serverless variant
    may get instances, but not the other way round. Sources: aws/sagemaker-python-sdk pull request 3124; SageMaker
    developer guide, "Update a serverless endpoint".

    Args:
        endpoint: the endpoint's name.
        old: CreateEndpointConfig's members of the configuration that serves.
        new: those of the requested configuration.

    Raises:
        AwsError: ValidationException.
    """
    was_async, is_async = (bool(config.get("AsyncInferenceConfig")) for config in (old, new))
    if was_async != is_async:
        change = "removed from" if was_async else "added to"
        raise validation_error(
            f"The AsyncInferenceConfig parameter cannot be {change} this endpoint {endpoint}. "
            "To change the endpoint type, create another endpoint."
        )
    with_instances = {variant["VariantName"] for variant in old["ProductionVariants"] if not _is_serverless(variant)}
    changed = [
        variant["VariantName"]
        for variant in new["ProductionVariants"]
        if _is_serverless(variant) and variant["VariantName"] in with_instances
    ]
    if changed:
        raise validation_error(
            f"Variant {', '.join(changed)} of endpoint {endpoint} has instances and cannot be updated to a serverless "
            "variant. Create another endpoint with the serverless configuration."
        )


def _is_serverless(variant: Json) -> bool:
    return "ServerlessConfig" in variant
