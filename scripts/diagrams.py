"""
Draw the Mermaid diagrams of the docs as SVG files: `python scripts/diagrams.py`. Needs npm, chromium and selenium.

The site shows the files, so that it works offline and without Mermaid's 3 MB; GitHub and editors draw the source. A
file is named after its source: `scripts/site.py` fails where a diagram has changed and was not drawn again.
"""

import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "diagrams"
PACKAGE, VERSION = "@mermaid-js/tiny", "12.0.0"
INTEGRITY = "sha512-ZW9YXy+3tSLPscBT+NnQO0K0qYH7BGES5nExl6Snoygey7xd2N0cO7Nq30N5k/u7gIeYoCrldyVy+VTCMWrNDQ=="
THEMES = {"light": "neutral", "dark": "dark"}
_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_RENDER = """
const [code, theme, done] = arguments;
const flowchart = {htmlLabels: false, wrappingWidth: 260};
mermaid.initialize({startOnLoad: false, theme, htmlLabels: false, flowchart, fontFamily: "sans-serif"});
mermaid.render("diagram", code).then(result => done(result.svg), error => done("error: " + error));
"""


def file_of(code: str, theme: str) -> Path:
    """Return the file of a diagram."""
    return FOLDER / f"{hashlib.sha256(code.encode()).hexdigest()[:12]}-{theme}.svg"


def diagrams() -> set[str]:
    """Return the sources of all diagrams in the docs."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {code for page in pages for code in _FENCE.findall(page.read_text())}


def with_images(text: str, page: Path) -> str:
    """
    Return a page with an image for each diagram.

    Raises:
        FileNotFoundError: a diagram was not drawn.
    """

    def images(match: re.Match[str]) -> str:
        headings = _HEADING.findall(text, 0, match.start())
        lines = []
        for theme in THEMES:
            path = file_of(match[1], theme)
            if not path.exists():
                raise FileNotFoundError(
                    f"{page} has a diagram that is not drawn yet. Run `python scripts/diagrams.py`."
                )
            target = os.path.relpath(path.relative_to(ROOT), page.parent)
            lines.append(f"![Diagram: {headings[-1]}]({target}#only-{theme})")
        return "\n".join(lines)

    return _FENCE.sub(images, text)


def library() -> str:
    """Return Mermaid's code, downloaded from npm and verified."""
    from vendor import download, integrity_of

    archive = download(PACKAGE, VERSION)
    if (found := integrity_of(archive)) != INTEGRITY:
        raise SystemExit(f"{PACKAGE}: the checksum is {found}; expected {INTEGRITY}.")
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        member = tar.extractfile("package/dist/mermaid.tiny.js")
        assert member is not None, "it is a file"
        return member.read().decode()


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            yield driver
        finally:
            driver.quit()


def main() -> int:
    """Draw the diagrams that have no file, and delete the files of diagrams that are gone."""
    wanted = {file_of(code, theme): (code, theme) for code in diagrams() for theme in THEMES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in set(FOLDER.iterdir()) - wanted.keys():
        path.unlink()
    missing = {path: task for path, task in wanted.items() if not path.exists()}
    if not missing:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page, browser() as driver:
        page.write(f"<!doctype html><meta charset=utf-8><body><script>{library()}</script>")
        page.flush()
        driver.get(f"file://{page.name}")
        for path, (code, theme) in missing.items():
            svg = driver.execute_async_script(_RENDER, code, THEMES[theme])
            if svg.startswith("error:"):
                raise SystemExit(f"{json.dumps(code[:60])}: {svg}")
            path.write_text(svg + "\n")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
