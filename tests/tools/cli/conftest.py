"""Run commands on an engine that repeats the prompt."""

import os
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from headrace.serving.settings.server_settings import ServerSettings
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.tools.cli.main import cli
from headrace.tools.cli.sources import Seams
from tests.service_models import parsed_service_models

__all__ = ["parsed_service_models"]


class Headrace:
    """Runs command lines in this process, each with a new engine."""

    def __init__(self) -> None:
        self.script = EchoScript()
        self.kind = EchoBackend
        self.backend = EchoBackend()
        """The engine of the last command."""
        self.configs: list[ServerSettings] = []

    def make_engine(self, config: ServerSettings, progress: Callable) -> EchoBackend:
        self.configs.append(config)
        progress("load", 1, 1)
        self.backend = self.kind(max_model_len=600, script=self.script)
        return self.backend

    def __call__(self, *args: object, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
        seams = Seams(make_engine=self.make_engine)
        arguments = [str(arg) for arg in args]
        return CliRunner().invoke(cli, arguments, input=stdin, env=env, obj=seams, prog_name="headrace")


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch) -> Headrace:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    return Headrace()
