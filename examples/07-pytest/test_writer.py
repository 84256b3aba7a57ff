"""Tests of that code against a real endpoint; `pytest` in this folder runs them."""

import pytest
from botocore.exceptions import ClientError
from writer import continue_text

pytestmark = pytest.mark.usefixtures("headrace_env")


def test_the_answer_continues_the_text(headrace_endpoint):
    answer = continue_text(headrace_endpoint, "The sea is")
    assert answer.startswith("The sea is ")


def test_a_text_over_the_limit_of_the_endpoint_is_refused(headrace_deploy, headrace_model):
    endpoint = headrace_deploy(headrace_model, env={"MAX_INPUT_TOKENS": "8", "MAX_TOTAL_TOKENS": "16"})
    with pytest.raises(ClientError, match="must have less than 8 tokens"):
        continue_text(endpoint, "wave " * 50)
