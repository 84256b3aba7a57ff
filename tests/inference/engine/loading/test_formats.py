"""The choice of weight and KV formats from the model and the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.core.sampling_defaults import SMALL_MODEL_PARAMETERS
from headrace.inference.engine.loading.formats import (
    BYTES_PER_WEIGHT,
    DTYPES,
    KV_DTYPES,
    WEIGHTS_SHARE,
    Machine,
    choose_formats,
    weight_format,
)

ROOMY = Machine(available_bytes=1 << 40, has_native_bf16=True)
EMULATED = Machine(available_bytes=1 << 40, has_native_bf16=False)
SMALL, LARGE = 135_000_000, 8_000_000_000


def chosen(num_parameters: int, stored_bits: int, machine: Machine = ROOMY) -> tuple[str, str]:
    formats = choose_formats("auto", "auto", num_parameters=num_parameters, stored_bits=stored_bits, machine=machine)
    return formats.dtype, formats.kv_dtype


@pytest.mark.parametrize(
    ("num_parameters", "stored_bits", "formats"),
    [
        (SMALL, 16, ("bf16", "bf16")),
        (SMALL, 8, ("w8a16", "bf16")),
        (SMALL, 4, ("w4a16", "bf16")),
        (SMALL_MODEL_PARAMETERS, 4, ("w4a8", "int8")),
        (LARGE, 16, ("bf16", "bf16")),
        (LARGE, 8, ("w8a8", "int8")),
        (LARGE, 5, ("w8a8", "int8")),
        (SMALL, 5, ("w8a16", "bf16")),
        (LARGE, 4, ("w4a8", "int8")),
    ],
)
def test_small_models_default_to_quality_and_large_ones_to_the_format_of_the_file(
    num_parameters: int, stored_bits: int, formats: tuple[str, str]
) -> None:
    assert chosen(num_parameters, stored_bits) == formats


@pytest.mark.parametrize(("num_parameters", "dtype"), [(SMALL, "w4a16"), (LARGE, "w4a8")])
def test_a_mixed_file_keeps_its_4_bit_matrices_in_4_bits(num_parameters: int, dtype: str) -> None:
    for stored_bits in (4, 5, 6, 8):
        formats = choose_formats(
            "auto", "auto", num_parameters=num_parameters, stored_bits=stored_bits, machine=ROOMY, is_mixed=True
        )
        assert formats.dtype == dtype
    floats = choose_formats("auto", "auto", num_parameters=num_parameters, stored_bits=16, machine=ROOMY, is_mixed=True)
    assert floats.dtype == "bf16"


@pytest.mark.parametrize("is_mixed", [False, True])
def test_weights_of_less_than_4_bits_are_kept(is_mixed: bool) -> None:
    formats = choose_formats(
        "auto", "auto", num_parameters=LARGE, stored_bits=3, machine=ROOMY, is_mixed=is_mixed, keeps_low_bits=True
    )
    assert (formats.dtype, formats.reason) == ("w4a8", "w4a8 keeps the file's weights of 3 and other bits")


@pytest.mark.parametrize(
    ("stored_bits", "choice"),
    [(4, "w4a16 matches the file's 4-bit weights"), (6, "w8a16 is closest to the file's 6-bit weights")],
)
def test_the_reason_of_a_small_model_names_its_weights_and_inputs(stored_bits: int, choice: str) -> None:
    formats = choose_formats("auto", "auto", num_parameters=SMALL, stored_bits=stored_bits, machine=ROOMY)
    assert formats.reason == f"{choice}; under 1 B parameters 8-bit activations cost too much quality"


def test_large_float_models_run_in_8_bits_where_bf16_is_emulated() -> None:
    assert chosen(LARGE, 16, EMULATED) == ("w8a8", "int8")
    assert chosen(SMALL, 16, EMULATED) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("stored_bits", "reason"),
    [
        (4, "w4a8 matches the file's 4-bit weights, the fastest format on this CPU"),
        (8, "w8a8 matches the file's 8-bit weights; w4a8 is faster on this CPU, less accurately"),
    ],
)
def test_on_avx2_the_reason_of_a_large_model_names_the_fastest_format(stored_bits: int, reason: str) -> None:
    machine = Machine(available_bytes=1 << 40, has_native_bf16=False, is_fastest_in_w4a8=True)
    formats = choose_formats("auto", "auto", num_parameters=LARGE, stored_bits=stored_bits, machine=machine)
    assert formats.reason == reason
    small = choose_formats("auto", "auto", num_parameters=SMALL, stored_bits=stored_bits, machine=machine)
    assert "fast" not in small.reason


def test_a_smaller_format_is_chosen_and_reported_when_memory_is_short() -> None:
    machine = Machine(available_bytes=12 << 30, has_native_bf16=True)
    formats = choose_formats("auto", "auto", num_parameters=LARGE, stored_bits=16, machine=machine)
    assert formats.dtype == "w8a8"
    assert formats.reason == "w8a8 because bf16 weights take 14.9 GiB of 12 GiB"


@given(
    st.sampled_from(DTYPES),
    st.sampled_from(KV_DTYPES),
    st.integers(1, 10**12),
    st.integers(1, 32),
    st.integers(0, 1 << 42),
)
def test_a_requested_format_is_never_overruled(
    dtype: str, kv_dtype: str, num_parameters: int, stored_bits: int, available_bytes: int
) -> None:
    machine = Machine(available_bytes=available_bytes, has_native_bf16=False)
    formats = choose_formats(dtype, kv_dtype, num_parameters=num_parameters, stored_bits=stored_bits, machine=machine)
    assert (formats.dtype, formats.kv_dtype, formats.reason) == (dtype, kv_dtype, f"{dtype} as requested")


@given(st.integers(1, 10**12), st.integers(1, 32), st.integers(0, 1 << 42), st.booleans())
def test_the_default_fits_where_any_format_does(
    num_parameters: int, stored_bits: int, available_bytes: int, has_native_bf16: bool
) -> None:
    machine = Machine(available_bytes=available_bytes, has_native_bf16=has_native_bf16)
    dtype, _ = chosen(num_parameters, stored_bits, machine)
    fits = num_parameters * BYTES_PER_WEIGHT[weight_format(dtype)] <= WEIGHTS_SHARE * available_bytes
    assert fits or weight_format(dtype) == "w4"


def test_a_requested_format_with_8_bit_inputs_defaults_to_an_int8_kv_cache() -> None:
    for dtype in DTYPES:
        formats = choose_formats(dtype, "auto", num_parameters=SMALL, stored_bits=4, machine=ROOMY)
        assert formats.kv_dtype == ("int8" if dtype.endswith("a8") else "bf16")


def test_unknown_formats_are_refused_with_a_list_of_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"fp4.*bf16, w8a16, w8a8, w4a16, w4a8"):
        choose_formats("fp4", "auto", num_parameters=SMALL, stored_bits=16, machine=ROOMY)
    with pytest.raises(SettingsError, match=r"fp8.*bf16, int8"):
        choose_formats("bf16", "fp8", num_parameters=SMALL, stored_bits=16, machine=ROOMY)
