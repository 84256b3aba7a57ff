"""What SageMaker would do for a variant and Headrace does not: accepted, and said. Pure."""

from headrace.control.model.version import Version
from headrace.state.records import Json


def notices_of_variant(version: Version, variant_name: str) -> tuple[str, ...]:
    """Sentences for the describe and the log; empty when all is as on SageMaker."""
    config: Json = version.raw["config"]
    variant: Json = next(one for one in config["ProductionVariants"] if one["VariantName"] == variant_name)
    said = {
        "DataCaptureConfig is kept, nothing is captured yet.": _is_on(config, "DataCaptureConfig", "EnableCapture"),
        "No network is isolated (EnableNetworkIsolation).": _has_network_isolation(version, variant_name),
        "ServerlessConfig has one worker that always runs; its limits are not enforced.": "ServerlessConfig" in variant,
        "CoreDumpConfig is kept, core dumps are not uploaded.": "CoreDumpConfig" in variant,
        "VolumeSizeInGB is kept: workers share the disk of this machine.": "VolumeSizeInGB" in variant,
        "InferenceAmiVersion is kept: workers are processes of this machine.": "InferenceAmiVersion" in variant,
        "AcceleratorType is kept: the model runs on the CPU.": "AcceleratorType" in variant,
        "EnableSSMAccess is kept: there are no instances to log in to.": bool(variant.get("EnableSSMAccess")),
        "CapacityReservationConfig is kept: nothing is reserved.": "CapacityReservationConfig" in variant,
        "KV_AWARE routing is done as PREFIX_AWARE.": (
            (variant.get("RoutingConfig") or {}).get("RoutingStrategy") == "KV_AWARE"
        ),
    }
    return tuple(sentence for sentence, is_so in said.items() if is_so)


def _is_on(config: Json, member: str, switch: str) -> bool:
    return bool((config.get(member) or {}).get(switch))


def _has_network_isolation(version: Version, variant_name: str) -> bool:
    variant = version.variant(variant_name)
    model: Json = version.raw["models"].get(variant.model, {}) if variant is not None and variant.model else {}
    return bool(version.raw["config"].get("EnableNetworkIsolation") or model.get("EnableNetworkIsolation"))
