"""`headrace serve`: run a model server."""

import os
import sys
from typing import Any

import click

from headrace.serving.settings.sources import gather_settings
from headrace.tools.cli.consent import check_consent
from headrace.tools.cli.group import Examples
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.ready import print_ready
from headrace.tools.cli.setting_options import merge_rope, rope_options, setting_options
from headrace.tools.cli.user_code import (
    find_user_code,
    formatted_notices,
    formatted_overrides,
    formatters_of,
    serve_user_code,
    unpacked,
)

EXAMPLES = """
headrace serve smollm2                              a small real model on http://127.0.0.1:8080
headrace serve Qwen/Qwen3-0.6B --dtype w8a8         a model from the Hub with 8-bit weights
headrace serve ./model.gguf --port 0                a file, on any free port
headrace serve ./my-model --handler auto            with its own inference code, as is ./model.mar
headrace serve smollm2 --host 0.0.0.0 --api-key K   reachable by others who have the key
headrace serve smollm2 --rope '{"rope_type": "yarn", "factor": 4}'   a longer context
HF_MODEL_ID=smollm2 headrace serve                  settings from the environment, as in containers
headrace fit MODEL                                  memory needs, before anything is loaded
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model", required=False)
@setting_options()
@rope_options()
def serve(**overrides: Any) -> None:
    """
    Serve MODEL (an alias such as smollm2, a Hub id, an s3:// prefix, a folder, an archive or a .gguf file) over HTTP.

    A folder or an archive (.mar, .tar.gz, .tgz) may bring the code that serves it: a DJL model.py, a SageMaker
    inference.py, a handler for TorchServe. It runs with --handler auto, or after a question on a terminal. See
    docs/custom-code.

    One port speaks SageMaker's container contract (/ping, /invocations), TGI (/generate_stream), OpenAI
    (/v1/chat/completions) and has a chat page at /. Every option is also an environment variable; see
    docs/settings.md.
    """
    from headrace.inference.backends.facts import runs_on_gpu

    merged = merge_rope(overrides)
    user_code = find_user_code(merged, os.environ)
    if user_code is not None:
        check_consent(user_code, merged, os.environ)
        if user_code.serves:
            sys.exit(serve_user_code(user_code))
        merged = formatted_overrides(merged, os.environ)
    merged = unpacked(merged, os.environ)
    settings, notices = gather_settings(merged, os.environ, on_gpu=runs_on_gpu(os.environ))
    from headrace.serving.server.main import run_server

    if user_code is not None:
        notices = formatted_notices(user_code, notices)
    with showing_progress() as progress:
        formatters = None if user_code is None else formatters_of(user_code, settings, progress)
        code = run_server(settings, notices=notices, progress=progress, on_ready=print_ready, formatters=formatters)
    sys.exit(code)
