"""`accept_eula` in custom attributes: ignored, asked of gated models, or required."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.sagemaker import accepted_eula, read_attributes

from .conftest import serving

ASK = {"inputs": "one two", "parameters": {"max_new_tokens": 4}}
LLAMA = "meta-llama/Llama-2-13b-chat-hf"
DECLINED, ACCEPTED, SILENT = "accept_eula=false", "accept_eula=true", None


@pytest.mark.parametrize(
    ("check", "model", "refused"),
    [
        ("ignore", LLAMA, set()),
        ("gated", LLAMA, {DECLINED}),
        ("gated", "smollm2", set()),
        ("required", "smollm2", {DECLINED, SILENT}),
    ],
)
def test_a_declined_licence_is_a_424_in_jumpstarts_form_where_it_is_asked_for(check, model, refused):
    with serving(model=model, eula_check=check) as echo:
        for attributes in (DECLINED, ACCEPTED, SILENT):
            headers = {} if attributes is None else {"X-Amzn-SageMaker-Custom-Attributes": attributes}
            response = echo.post("/invocations", ASK, headers=headers)
            assert response.status_code == (424 if attributes in refused else 200), response.text
            if attributes in refused:
                answer = response.json()
                assert (answer["code"], answer["message"]) == (424, "prediction failure")
                assert answer["error"].startswith("Need to pass custom_attributes='accept_eula=true' as part of header")
        assert echo.post("/generate", ASK).status_code == 200


@pytest.mark.parametrize(
    ("attributes", "accepted"),
    [
        ("", None),
        ("c000b4f9", None),
        ("accept_eula=true", True),
        ("accept_eula=True", True),
        ("trace=1, accept_eula=true", True),
        ("trace=1;accept_eula=false", False),
        ("accept_eula", False),
        ("accept_eula=", False),
        ("not_accept_eula=true", None),
    ],
)
def test_attributes_are_read_in_their_usual_spellings(attributes, accepted):
    assert accepted_eula(read_attributes(attributes)) is accepted


@given(st.text())
def test_no_attributes_break_it(attributes):
    assert accepted_eula(read_attributes(attributes)) in (None, True, False)
