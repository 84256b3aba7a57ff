"""
Common parts of the scripts of first examples: the addresses, and steps that are reported one by one.

It runs in the client's own environment, which has no Headrace.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

SERVER = os.environ["CLIENT_SERVER_URL"]
"""A model server, without a path."""
PLATFORM = os.environ["CLIENT_PLATFORM_URL"]
"""A platform, without a path; the variables of `headrace env` are set too."""
PLATFORM_KEY = os.environ["AWS_SECRET_ACCESS_KEY"]
"""Its API key for clients of OpenAI."""
MODEL = os.environ["CLIENT_MODEL"]
"""The name of the model on the server, and of its endpoint on the platform."""
TOKENIZER = os.environ["CLIENT_TOKENIZER"]
"""A folder with its tokenizer and chat template, in Hugging Face's layout."""
QUESTION = "What is the capital of France?"


@contextmanager
def step(name: str) -> Iterator[None]:
    """Run one example, and report whether it failed; the next one runs in any case."""
    failure = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - every failure is a result
        traceback.print_exc(file=sys.stderr)
        failure = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps({"step": name, "error": failure}), flush=True)


def expect(condition: object, what: str) -> None:
    """Raise if an answer lacks something."""
    if not condition:
        raise AssertionError(f"expected {what}")
