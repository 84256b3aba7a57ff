import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import MODEL, expect, step


def aws(*arguments: str) -> str:
    program = Path(sys.executable).parent / "aws"
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:])
    return done.stdout


with step("sagemaker describe-endpoint"):
    expect(json.loads(aws("sagemaker", "describe-endpoint", "--endpoint-name", MODEL))["EndpointArn"], "an ARN")
with step("sagemaker-runtime invoke-endpoint"), tempfile.TemporaryDirectory() as folder:
    target = f"{folder}/answer.json"
    body = json.dumps({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}})
    options = ("--content-type", "application/json", "--body", body)
    aws("sagemaker-runtime", "invoke-endpoint", "--endpoint-name", MODEL, *options, target)
    expect(json.loads(Path(target).read_text(encoding="utf-8")), "text")
