"""botocore's service models, for the tests of a folder whose `conftest` imports the fixture."""

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def parsed_service_models() -> Iterator[None]:
    """
    Parse each file of botocore once per process.

    boto3 parses the model of a service for every session, 0.4 CPU seconds for SageMaker's, and each command that a test
    runs has a session of its own.
    """
    from botocore.loaders import JSONFileLoader  # 0.1 seconds that a run without clients does not need

    with pytest.MonkeyPatch.context() as patch:
        load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
        patch.setattr(JSONFileLoader, "load_file", lambda _loader, path: load(path))
        yield
