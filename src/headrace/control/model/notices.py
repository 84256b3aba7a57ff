"""Notices about members that SageMaker acts on and Headrace accepts without effect."""

from headrace.state.records import Json


def variant_notices(config: Json, variant: Json, model: Json | None) -> tuple[str, ...]:
    """
    Return the sentences for DescribeEndpoint and the log; none if all is as on SageMaker.

    Args:
        config: CreateEndpointConfig's members.
        variant: the production variant's members.
        model: CreateModel's members.
    """
    is_isolated = config.get("EnableNetworkIsolation") or (model or {}).get("EnableNetworkIsolation")
    notices = {
        "DataCaptureConfig is kept, nothing is captured yet.": (config.get("DataCaptureConfig") or {}).get(
            "EnableCapture"
        ),
        "No network is isolated (EnableNetworkIsolation).": is_isolated,
        "ServerlessConfig has one worker that always runs; its limits are not enforced.": "ServerlessConfig" in variant,
        "CoreDumpConfig is kept, core dumps are not uploaded.": "CoreDumpConfig" in variant,
        "VolumeSizeInGB is kept: workers share the disk of this machine.": "VolumeSizeInGB" in variant,
        "InferenceAmiVersion is kept: workers are processes of this machine.": "InferenceAmiVersion" in variant,
        "AcceleratorType is kept: the model runs on the CPU.": "AcceleratorType" in variant,
        "EnableSSMAccess is kept: there are no instances to log in to.": variant.get("EnableSSMAccess"),
        "CapacityReservationConfig is kept: nothing is reserved.": "CapacityReservationConfig" in variant,
        "KV_AWARE routing is done as PREFIX_AWARE.": (
            (variant.get("RoutingConfig") or {}).get("RoutingStrategy") == "KV_AWARE"
        ),
    }
    return tuple(notice for notice, is_so in notices.items() if is_so)
