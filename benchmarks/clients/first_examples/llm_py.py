import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import MODEL, QUESTION, SERVER, expect, step

MODELS = f"""
- model_id: local
  model_name: {MODEL}
  api_base: {SERVER}/v1
  supports_tools: true
  supports_schema: true
"""


def llm(*arguments: str) -> str:
    command = [sys.executable, "-m", "llm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()


with tempfile.TemporaryDirectory() as folder:
    os.environ |= {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "-"}
    Path(folder, "extra-openai-models.yaml").write_text(MODELS, encoding="utf-8")
    with step("llm -m"):
        expect(llm("-m", "local", QUESTION), "text")
    with step("llm -c (continue)"):
        expect(llm("-c", "And of Italy?"), "text")
    with step("llm --no-stream"):
        expect(llm("-m", "local", "--no-stream", QUESTION), "text")
