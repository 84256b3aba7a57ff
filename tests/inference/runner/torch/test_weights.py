"""Weights that are copied to a device in pieces."""

import numpy as np
import pytest
import torch

from headrace.inference.runner.torch.weights import Uploader


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1234])
def test_pieces_arrive_in_order(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    uploader = Uploader(torch.device("cpu"), buffer_bytes=100, num_buffers=3)
    for _ in range(2):
        np.testing.assert_array_equal(uploader.upload(data).numpy(), data)
    uploader.close()


def test_a_page_that_cannot_be_read_stops_the_load():
    uploader = Uploader(torch.device("cpu"), buffer_bytes=100, num_buffers=2)
    with pytest.raises(ValueError, match="broadcast"):
        uploader._fill(0, np.zeros(200, np.uint8)).result()
    uploader.close()
