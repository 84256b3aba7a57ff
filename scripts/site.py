"""
Build the documentation as a site: `python scripts/site.py [FOLDER]`, by default `build/site`; `--serve` shows it.

The pages link to files all over the repository, so the site's source is a copy of what git knows of it: links are the
same on the site as in an editor. Diagrams are shown as `scripts/diagrams.py` drew them, and a comment `not run` as a
sentence. A link or an anchor that leads
nowhere fails the build. Needs the dependency group `docs`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from diagrams import with_images

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "site-source"
_FOLDERS = ("docs", "benchmarks", "examples", "deploy")
_FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
_FIRST_COMMENT = re.compile(r"\A<!-- .* -->\n")
"""The note of a generated page; behind it MkDocs does not find the page's title."""
_NOT_RUN = re.compile(r"^<!-- not run: (.*) -->\n+", re.MULTILINE)
"""The mark of a block that the tests do not run (`tests/pages.py`)."""


def copy_source() -> None:
    """Copy the files that pages may show or link to."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_FOLDERS, *_FILES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            target = SOURCE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
            if target.suffix == ".md":
                text = _FIRST_COMMENT.sub("", target.read_text(encoding="utf-8"))
                text = _NOT_RUN.sub(r"<small>The tests do not run this block: \1.</small>\n\n", text)
                target.write_text(with_images(text, Path(name)), encoding="utf-8")


def main() -> int:
    """Build or serve the site; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "build" / "site", help="where the site is written"
    )
    parser.add_argument("--serve", action="store_true", help="serve it on http://127.0.0.1:8000 instead")
    options = parser.parse_args()
    copy_source()
    action = (
        ["serve"] if options.serve else ["build", "--strict", "--quiet", "--site-dir", str(options.folder.absolute())]
    )
    command = [sys.executable, "-m", "mkdocs", *action, "--config-file", str(ROOT / "mkdocs.yml")]
    return subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
