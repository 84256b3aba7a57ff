"""What of a production variant has no effect is said."""

from typing import Any

import pytest

from headrace.control.model.version import read_version
from headrace.control.planning.notices import notices_of_variant


def said(**members: Any) -> tuple[str, ...]:
    variant = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large", **members}
    config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    return notices_of_variant(read_version({"generation": 1, "config": config, "models": {"m": {}}}), "v")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VolumeSizeInGB", 512),
        ("InferenceAmiVersion", "al2-ami-sagemaker-inference-gpu-2"),
        ("AcceleratorType", "ml.eia2.medium"),
        ("EnableSSMAccess", True),
        ("CapacityReservationConfig", {"CapacityReservationPreference": "capacity-reservations-only"}),
    ],
)
def test_a_member_without_effect_is_said_by_its_name(name: str, value: object) -> None:
    (notice,) = said(**{name: value})
    assert notice.startswith(f"{name} is kept")


def test_what_is_done_or_off_is_not_said() -> None:
    assert said() == ()
    done = {"ModelDataDownloadTimeoutInSeconds": 60, "ContainerStartupHealthCheckTimeoutInSeconds": 60}
    assert said(**done, EnableSSMAccess=False) == ()
