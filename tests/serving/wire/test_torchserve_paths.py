"""Paths by which clients of TorchServe and KServe name a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.torchserve.management import ModelCall, list_models, read_model_path


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/predictions/m", ModelCall(model="m")),
        ("/predictions/m/", ModelCall(model="m")),
        ("/predictions/m/1.0", ModelCall(model="m", version="1.0")),
        ("/predictions/m/1.0/a/b", ModelCall(model="m", version="1.0", rest="a/b")),
        ("/explanations/m", ModelCall(model="m", mode="explain")),
        ("/invocations", ModelCall(model=None, rest="/invocations")),
        ("/models/m/invoke", ModelCall(model="m", rest="/models/m/invoke")),
        ("/v1/models/m:predict", ModelCall(model="m")),
        ("/v1/models/m:explain", ModelCall(model="m", mode="explain")),
        ("/v2/models/m/infer", ModelCall(model="m")),
        ("/v2/models/m/explain", ModelCall(model="m", mode="explain")),
        ("/m/predict", ModelCall(model="m", rest="/m/predict")),
        ("/m/2/predict", ModelCall(model="m", version="2", rest="/m/2/predict")),
        ("/predictions", None),
        ("/v1/models/m", None),
        ("/models/m", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_path_names_a_model_and_a_mode(path: str, call: ModelCall | None) -> None:
    assert read_model_path(path) == call


@given(st.text("/abv12:.", max_size=30))
def test_any_path_is_read(path: str) -> None:
    read_model_path(path)


@given(st.sets(st.text("abc", min_size=1)), st.integers(1, 5))
def test_pages_of_models_are_complete(names: set[str], limit: int) -> None:
    token, seen = "0", []
    while token is not None:
        page = list_models(dict.fromkeys(names, "u"), limit=str(limit), next_page_token=token)
        seen += [model["modelName"] for model in page["models"]]
        token = page.get("nextPageToken")
    assert seen == sorted(names)
