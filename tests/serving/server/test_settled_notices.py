"""Notices that depend on the backend, once it is chosen."""

import pytest

from headrace.inference.backends.choice import BackendChoice
from headrace.serving.server.main import settled_notices
from headrace.serving.settings.loading import load_settings

ENV = {"OPTION_MAX_CPU_LORAS": "4", "OPTION_TRUST_REMOTE_CODE": "true", "OPTION_MAX_ROLLING_BATCH_SIZE": "8"}


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("native", ["ignored", "ignored"]),
        ("torch", ["ignored", "ignored"]),
        ("transformers", ["ignored", "applied"]),
        ("vllm", ["applied", "applied"]),
    ],
)
def test_a_name_that_depends_on_the_backend_is_reported_for_the_one_that_serves(backend, kinds):
    _, notices = load_settings({"model": "m"}, ENV)
    settled = settled_notices(notices, BackendChoice(name=backend, device="cpu", reason="as requested"))

    assert [notice.name for notice in settled] == ["OPTION_MAX_CPU_LORAS", "OPTION_TRUST_REMOTE_CODE"]
    assert [notice.kind for notice in settled] == kinds


def test_what_serves_in_place_of_an_engine_comes_first():
    _, notices = load_settings({"model": "m"}, ENV)
    choice = BackendChoice(
        name="native", device="cpu", reason="r", notices=("native serves.",), adjustments={"dtype": "It is bf16."}
    )
    first, second, *_ = settled_notices(notices, choice)

    assert (first.name, first.kind, first.message) == ("rolling_batch", "ignored", "native serves.")
    assert (second.name, second.kind, second.message) == ("dtype", "ignored", "It is bf16.")
