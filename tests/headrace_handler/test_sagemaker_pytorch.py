"""The image `pytorch-inference`, with real models."""

import io
from pathlib import Path

import numpy as np
import pytest

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.sagemaker_models import (
    CSV,
    JSON,
    NPY,
    invoke,
    load,
    load_program,
    npy,
)
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.usefixtures("sagemaker_imports")


class TestPyTorch:
    """`pytorch-inference`: TorchScript is served without code."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        with pytest.warns(DeprecationWarning, match="torch.jit"):
            torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "net.pth")
        return tmp_path

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_the_default_functions_serve_torchscript(self, folder: Path) -> None:
        torch = pytest.importorskip("torch")
        expected = torch.jit.load(folder / "net.pth")(torch.tensor([[1.0, 2.0], [3.0, 4.5]])).tolist()
        contract = load(folder, "pytorch", entry="")

        bodies = [
            (b"[[1, 2], [3, 4.5]]", JSON),
            (b"1,2\n3,4.5\n", CSV),
            (npy(np.array([[1, 2], [3, 4.5]], np.float32)), NPY),
        ]
        for body, content_type in bodies:
            reply = invoke(contract, body, content_type)
            assert reply.status == 200, reply.body
            np.testing.assert_allclose(reply.json, expected, rtol=1e-5)
        np.testing.assert_allclose(np.load(io.BytesIO(invoke(contract, *bodies[0], NPY).body)), expected, rtol=1e-5)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_files_that_are_no_single_model_fail_when_they_are_loaded(self, folder: Path) -> None:
        (folder / "b.pt").write_bytes(b"junk")

        with pytest.raises(LoadFailed) as failed:
            load(folder, "pytorch", entry="")
        assert failed.value.message == (
            "ValueError: Exactly one .pth or .pt file is required for PyTorch models: ['b.pt', 'net.pth']"
        )
        (folder / "net.pth").unlink()
        with pytest.raises(LoadFailed, match="Please ensure model is saved using torchscript"):
            load(folder, "pytorch", entry="")

    def test_a_state_dict_with_a_class_of_its_program_is_served_once_loaded(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 26 * 26, 10))
        torch.save(net.state_dict(), tmp_path / "torch_model.pth")
        code = """
            import os, torch
            loads = []

            class Net(torch.nn.Sequential):
                def __init__(self):
                    super().__init__(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 26 * 26, 10))

            def model_fn(model_dir, context):
                loads.append(context.system_properties["gpu_id"])
                assert len(loads) == 1
                net = Net()
                net.load_state_dict(torch.load(os.path.join(model_dir, "torch_model.pth")))
                return net
        """
        contract = load_program(tmp_path, code, "pytorch")
        image = np.random.default_rng(0).random((1, 1, 28, 28)).astype(np.float32)
        expected = net(torch.from_numpy(image)).tolist()

        for _ in range(2):
            np.testing.assert_allclose(invoke(contract, npy(image), NPY).json, expected, rtol=1e-4)
