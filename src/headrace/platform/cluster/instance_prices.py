"""
Approximate prices and memory bandwidths of instance types, for estimates.

Prices are those on demand for real-time inference in us-east-1, in US dollars an hour, as published in 2025. Bandwidths
are those of the accelerators' data sheets.
"""

from typing import Final

from headrace.platform.cluster.instance_types import find_instance_type

_PER_VCPU: Final = {
    "c4": 0.0596,
    "c5": 0.051,
    "c5d": 0.0576,
    "c6i": 0.051,
    "c6g": 0.0408,
    "c7g": 0.0435,
    "c7i": 0.05355,
    "m4": 0.06,
    "m5": 0.0575,
    "m5d": 0.068,
    "m6i": 0.0576,
    "m6g": 0.0462,
    "m7i": 0.0605,
    "r5": 0.0755,
    "r5d": 0.0865,
    "r6i": 0.0756,
    "r6g": 0.0605,
    "r7i": 0.0794,
    "t2": 0.0325,
}
_PRICES: Final = {
    "g4dn.xlarge": 0.736,
    "g4dn.2xlarge": 0.94,
    "g4dn.4xlarge": 1.505,
    "g4dn.8xlarge": 2.72,
    "g4dn.12xlarge": 4.89,
    "g4dn.16xlarge": 5.44,
    "g5.xlarge": 1.408,
    "g5.2xlarge": 1.515,
    "g5.4xlarge": 2.03,
    "g5.8xlarge": 3.06,
    "g5.12xlarge": 7.09,
    "g5.16xlarge": 5.12,
    "g5.24xlarge": 10.18,
    "g5.48xlarge": 20.36,
    "g6.xlarge": 1.127,
    "g6.2xlarge": 1.222,
    "g6.4xlarge": 1.654,
    "g6.8xlarge": 2.518,
    "g6.12xlarge": 5.752,
    "g6.48xlarge": 16.688,
    "p3.2xlarge": 3.825,
    "p3.8xlarge": 14.688,
    "p3.16xlarge": 28.152,
    "p4d.24xlarge": 37.688,
    "inf2.xlarge": 0.99,
    "inf2.8xlarge": 2.36,
    "inf2.24xlarge": 7.79,
    "inf2.48xlarge": 15.58,
}
_BANDWIDTHS: Final = {
    "NVIDIA T4": 320e9,
    "NVIDIA A10G": 600e9,
    "NVIDIA L4": 300e9,
    "NVIDIA L40S": 864e9,
    "NVIDIA V100": 900e9,
    "NVIDIA A100": 1555e9,
    "NVIDIA H100": 3350e9,
    "NVIDIA H200": 4800e9,
    "NVIDIA B200": 8000e9,
    "NVIDIA K80": 240e9,
    "AWS Inferentia2": 380e9,
    "AWS Trainium": 820e9,
}


def price_per_hour(name: str) -> float | None:
    """Return the price of an instance type; None if the tables do not have it."""
    kind = find_instance_type(name)
    if kind is None:
        return None
    short = name.removeprefix("ml.")
    per_vcpu = _PER_VCPU.get(short.partition(".")[0])
    return _PRICES.get(short) or (None if per_vcpu is None else per_vcpu * kind.vcpus)


def accelerator_bandwidth(name: str) -> float | None:
    """Return the bytes per second that all accelerators of an instance read from memory; None if unknown, or none."""
    kind = find_instance_type(name)
    bandwidth = _BANDWIDTHS.get(kind.accelerator) if kind is not None else None
    return None if kind is None or bandwidth is None else bandwidth * kind.num_accelerators
