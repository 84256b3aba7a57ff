"""
A whole server process around an `EchoBackend`, for tests of its life: `python -m tests.serving.server.echo_server
'{"…"}'`.

The JSON argument has `settings` (of the server), `script` (of the echo), and `fail`: a sentence to fail loading with.
"""

import json
import sys
import time

from headrace.core.errors import BrokenModel
from headrace.core.metrics import Metrics
from headrace.core.progress import Progress
from headrace.inference.engine.backend import Backend
from headrace.serving.server.main import run_server
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings
from headrace.testing.echo import EchoBackend, EchoScript


def main() -> int:
    options = json.loads(sys.argv[1])

    def load(_settings: ServerSettings, _progress: Progress, _metrics: Metrics, _on_choice: object) -> Backend:
        time.sleep(options.get("load_s", 0))
        if options.get("fail") == "crash":
            raise RuntimeError("a bug")
        if "fail" in options:
            raise BrokenModel(options["fail"])
        return EchoBackend(max_model_len=1_000_000, script=EchoScript(**options.get("script", {})))

    settings, notices = load_settings(
        {"model": "echo", "port": 0, "log_format": "json", **options.get("settings", {})}, options.get("env", {})
    )
    return run_server(settings, notices=notices, load=load)


if __name__ == "__main__":
    sys.exit(main())
