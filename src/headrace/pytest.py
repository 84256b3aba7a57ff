"""
A pytest plugin: fixtures that run a local SageMaker for the tests of code that uses SageMaker.

pytest imports it in every environment that has Headrace, so it imports nothing of Headrace before a fixture is used.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.local_platform import LocalPlatform

_PLATFORM = pytest.StashKey["LocalPlatform"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixtures."""
    parser.getgroup("headrace", "local SageMaker").addoption(
        "--headrace-model", metavar="MODEL", help="Model to test with, in place of the ini option headrace_model."
    )
    parser.addini("headrace_model", "Model to test with.", default="smollm2")
    parser.addini(
        "headrace_timeout_s", "Longest wait for the platform, a deployment or a response, seconds.", default="300"
    )
    parser.addini("headrace_up_options", "Options of `headrace up` for the platform.", type="args", default=[])


@pytest.fixture(scope="session")
def headrace_platform(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> "Iterator[LocalPlatform]":
    """A local SageMaker: `headrace up` on a free port, with a data folder of its own; it ends with the session."""
    from headrace.testing.local_platform import local_platform

    options = pytestconfig.getini("headrace_up_options")
    folder = tmp_path_factory.mktemp("headrace")
    with local_platform(
        folder, *options, timeout_s=read_timeout(pytestconfig.getini("headrace_timeout_s"))
    ) as platform:
        pytestconfig.stash[_PLATFORM] = platform
        yield platform


@pytest.fixture(scope="session")
def headrace_model(pytestconfig: pytest.Config) -> str:
    """The model of `--headrace-model`, or of the ini option `headrace_model`; override it to compute one."""
    return str(pytestconfig.getoption("--headrace-model") or pytestconfig.getini("headrace_model"))


@pytest.fixture(scope="session")
def headrace_endpoint(headrace_platform: "LocalPlatform", headrace_model: str) -> str:
    """The name of an endpoint with the model of `headrace_model`; all tests of the session share it."""
    return headrace_platform.deploy(headrace_model)


@pytest.fixture
def headrace_env(headrace_platform: "LocalPlatform") -> "Iterator[LocalPlatform]":
    """The environment of the test points boto3, the SageMaker SDK and child processes at the platform."""
    with headrace_platform.environment():
        yield headrace_platform


@pytest.fixture
def headrace_deploy(headrace_platform: "LocalPlatform") -> Iterator[Callable[..., str]]:
    """`LocalPlatform.deploy`; its endpoints are deleted at the end of the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(headrace_platform.deployed(*args, **kwargs))


@pytest.hookimpl(hookwrapper=True)  # the newer `wrapper` would break every session of an older pytest
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the end of the platform's log to the report of a failed test that used it."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    platform = item.config.stash.get(_PLATFORM, None)
    if report.failed and platform is not None and "headrace_platform" in getattr(item, "fixturenames", ()):
        report.sections.append(("Headrace platform log", platform.log_tail()))


def read_timeout(text: str) -> float:
    """Return the value of headrace_timeout_s."""
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise pytest.UsageError(f"headrace_timeout_s is {text!r}; expected a number of seconds greater than 0.")
    return timeout_s
