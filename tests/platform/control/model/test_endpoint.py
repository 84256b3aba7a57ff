"""Notices about members of a production variant that have no effect."""

from typing import Any

import pytest

from headrace.platform.control.model.endpoint import variant_notices


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
def test_a_notice_names_the_member_without_effect(name: str, value: object) -> None:
    (notice,) = notices(**{name: value})
    assert notice.startswith(f"{name} is kept")


def test_members_that_work_or_are_off_get_no_notice() -> None:
    assert notices() == ()
    done = {"ModelDataDownloadTimeoutInSeconds": 60, "ContainerStartupHealthCheckTimeoutInSeconds": 60}
    assert notices(**done, EnableSSMAccess=False) == ()
