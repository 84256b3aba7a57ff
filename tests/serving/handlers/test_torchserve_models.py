"""The models of TorchServe's APIs leave nothing behind when they are unregistered."""

import asyncio
import os
from pathlib import Path

import pytest

from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve_models import TorchServeModels
from headrace.serving.handlers.torchserve_store import ModelStore
from headrace.serving.wire.torchserve.management import ApiError, Registration
from tests.headrace_handler.torchserve_models import pack, write_model
from tests.serving.handlers.support import num_open_files
from tests.serving.handlers.wheels import make_wheel

HANDLER = "def handle(data, context): return data and ['OK'] * len(data)"
ENV = {"PATH": os.environ["PATH"], "SERVING_OFFLINE": "true"}


async def test_an_unregistered_model_keeps_no_descriptor(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", HANDLER, requirementsFile="requirements.txt")
    (folder / "requirements.txt").write_text("greeting==1.0\n")
    make_wheel(folder / "wheels", "greeting")
    (tmp_path / "store").mkdir()
    pack(folder, tmp_path / "store" / "m.mar")
    store = ModelStore(tmp_path / "store", env=ENV, cache_folder=tmp_path / "cache")

    async def find(registration: Registration) -> HandlerSpec:
        return await asyncio.to_thread(store.find, registration)

    models = TorchServeModels(find)
    registration = Registration(url="m.mar", initial_workers=0)
    model, _ = await models.register(registration)
    num_before = num_open_files(tmp_path)
    with pytest.raises(ApiError, match="already registered"):
        await models.register(registration)
    for _ in range(20):
        await models.unregister("m", None)
        await models.register(registration)
    assert num_open_files(tmp_path) == num_before
    assert len(model.spec.cache_locks) == 2
    await models.unregister("m", None)
    assert num_open_files(tmp_path) == num_before - 2
