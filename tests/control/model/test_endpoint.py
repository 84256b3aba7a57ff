"""Notices about members of a production variant that have no effect."""

from typing import Any

import pytest

from headrace.control.model.endpoint import variant_notices


def notices(**members: Any) -> tuple[str, ...]:
    variant = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large", **members}
    config = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    return variant_notices(config, variant, {})


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
    (notice,) = notices(**{name: value})
    assert notice.startswith(f"{name} is kept")


def test_what_is_done_or_off_is_not_notices() -> None:
    assert notices() == ()
    done = {"ModelDataDownloadTimeoutInSeconds": 60, "ContainerStartupHealthCheckTimeoutInSeconds": 60}
    assert notices(**done, EnableSSMAccess=False) == ()
