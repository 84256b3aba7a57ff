"""
Print the version to release and write its notes: `python scripts/release.py NOTES`, without packages of PyPI.

The notes are the version's section of CHANGELOG.md, with links to the files of the tag.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RELATIVE_LINK = re.compile(r"\]\((?!https?://)([^)]+)\)")


def section(changelog: str, version: str) -> str:
    """
    Return the text of a version.

    Raises:
        ValueError: The version has no text, or changes are still listed as unreleased.
    """
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    texts = {title.split()[0]: text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    if texts.get("Unreleased"):
        raise ValueError(f"CHANGELOG.md has changes under Unreleased. Move them under {version}.")
    if not texts.get(version):
        raise ValueError(f"CHANGELOG.md has no text under {version}; expected what this version does.")
    return texts[version]


def notes(changelog: str, version: str, repository: str) -> str:
    """Return a version's text with absolute links and a line for each paragraph, because GitHub keeps line breaks."""
    text = _RELATIVE_LINK.sub(rf"]({repository}/blob/v{version}/\1)", section(changelog, version))
    return re.sub(r"(?<!\n)\n *(?=\S)(?![-#|]|```)", " ", text) + "\n"


def main() -> None:
    """Write the notes, print the version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    server, name = os.environ.get("GITHUB_SERVER_URL", "https://github.com"), os.environ["GITHUB_REPOSITORY"]
    try:
        text = notes((ROOT / "CHANGELOG.md").read_text(), version, f"{server}/{name}")
    except ValueError as error:
        sys.exit(f"Error: {error}")
    Path(sys.argv[1]).write_text(text)
    print(version)


if __name__ == "__main__":
    main()
