"""The commands on an engine that repeats the prompt."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli
from headrace.cli.sources import Seams
from headrace.engine.config import EngineConfig
from headrace.engine.echo import EchoBackend


class Headrace:
    """Runs command lines in this process."""

    def __init__(self) -> None:
        self.backend = EchoBackend(max_model_len=200)
        self.configs: list[EngineConfig] = []

    def make_engine(self, config: EngineConfig, progress: Callable) -> EchoBackend:
        self.configs.append(config)
        progress("load", 1, 1)
        return self.backend

    def __call__(self, *args: object, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
        seams = Seams(make_engine=self.make_engine)
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, env=env, obj=seams)


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch) -> Headrace:
    import os

    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    return Headrace()
