"""GPUs as the driver lists them and as CUDA_VISIBLE_DEVICES selects them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.gpus import Gpu, parse_query, select_visible, visible_gpus

GPUS = tuple(Gpu(index=index, uuid=f"GPU-{index}{index}a-b") for index in range(3))


def test_the_driver_s_table_is_read():
    text = "0, GPU-1f, NVIDIA H100 80GB HBM3, 81559\n1, GPU-2e, NVIDIA GH200, [N/A]\nNo devices were found\n"

    assert parse_query(text) == (
        Gpu(index=0, uuid="GPU-1f", name="NVIDIA H100 80GB HBM3", memory_bytes=81559 << 20),
        Gpu(index=1, uuid="GPU-2e", name="NVIDIA GH200", memory_bytes=None),
    )


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-11a,0", [1, 0]),
        ("GPU-", []),
        ("none", []),
    ],
)
def test_a_process_sees_the_gpus_that_cuda_would_show_it(visible, indices):
    assert [gpu.index for gpu in select_visible(GPUS, visible)] == indices


@given(st.text(alphabet="0123456789,-GPUab "))
def test_any_value_selects_different_gpus_of_the_machine(visible):
    chosen = select_visible(GPUS, visible)

    assert set(chosen) <= set(GPUS)
    assert len(set(chosen)) == len(chosen)


@given(st.text())
def test_any_output_of_the_driver_can_be_read(text):
    assert all(gpu.index >= 0 for gpu in parse_query(text))


def test_a_machine_without_device_files_has_no_gpu(tmp_path):
    assert visible_gpus({}, devices=tmp_path) == ()
