import re
from pathlib import Path

from common import MODEL, PLATFORM, SERVER, step

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "langchain.md"
ADDRESSES = {"http://127.0.0.1:8080": SERVER, "http://127.0.0.1:7450": PLATFORM, '"smollm2"': f'"{MODEL}"'}

for section in GUIDE.read_text(encoding="utf-8").split("\n## ")[1:]:
    for block in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        code = block
        for written, real in ADDRESSES.items():
            code = code.replace(written, real)
        with step(section.partition("\n")[0]):
            exec(compile(code, str(GUIDE), "exec"), {"__name__": "guide"})
