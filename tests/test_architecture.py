"""The pages for newcomers name what exists: layers, modules, classes, files."""

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANGES = (ROOT / "docs" / "where-to-change.md").read_text()
GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text().split("## Glossary")[1]
LEAST_CHANGES = 10


def layers_of_importlinter() -> dict[str, list[set[str]]]:
    """Return the layers of each container, top first, without the entry point `__main__`."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    contracts = [config[name] for name in config.sections() if config[name].get("type") == "layers"]
    return {contract["containers"].strip(): layers_of(contract["layers"]) for contract in contracts}


def layers_of(text: str) -> list[set[str]]:
    layers = [set(re.split(r"\s*[|:]\s*", line.strip())) for line in text.split("\n") if line.strip()]
    return [layer for layer in layers if layer != {"__main__"}]


def layers_of_page() -> dict[str, list[set[str]]]:
    """Return the layers of each picture: the first column of the lines that do not begin with white space."""
    pictures = re.findall(r"(?:^## (The districts)|^`([\w.]+)`:)\n\n```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    return {
        f"headrace.{package}".rstrip("."): [
            set(re.split(r"\s{2,}", line)[0].strip().split(" | "))
            for line in picture.splitlines()
            if not line.startswith(" ")
        ]
        for _, package, picture in pictures
    }


def defines(path: Path, name: str) -> bool:
    python, native = rf"(async )?def {name}\b|{name}\b.*=", rf"\w.* (\w+::)?{name}\(.*\{{$"
    return bool(re.search(rf"^((enum )?class {name}\b|{python}|{native})", path.read_text(), re.MULTILINE))


def exists(dotted: str) -> bool:
    """Return whether `a.b.name` is a module below `headrace`, or a name that one defines."""
    path = PACKAGE.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    return module.exists() and defines(module, path.name)


def test_the_pictures_of_the_page_are_the_layers_that_imports_are_checked_against() -> None:
    assert layers_of_page() == layers_of_importlinter(), "Bring the pictures in docs/architecture.md up to date."


def test_every_module_that_the_architecture_page_names_exists() -> None:
    packages = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
    dotted = re.findall(rf"`(?!serving\.properties)((?:{packages})(?:\.\w+)+)`", PAGE)
    assert dotted
    assert [name for name in dotted if not exists(name)] == []


def test_a_dotted_name_on_any_page_is_a_module_or_a_text_of_the_source() -> None:
    """Renaming a package must not rename log events, files and labels that begin with the same word."""
    packages = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in PAGES
        for name in re.findall(rf"`((?:{packages})(?:\.[a-z_]+)+)`", page.read_text())
    }
    unknown = {name for _, name in named if not exists(name) and not (ROOT / "deploy" / "kubernetes" / name).exists()}
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [(page, name) for page, name in sorted(named) if name in unknown and name not in source] == []


def test_every_source_file_that_a_page_names_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(r"`(\w+(?:/\w+)+\.(?:py|h|cpp|inl))`", page.read_text())
        if not any((top / name).exists() for top in (ROOT, PACKAGE))
    ]
    assert not missing, "\n".join(missing)


def test_the_values_that_cross_layers_are_defined_in_the_files_that_the_page_names() -> None:
    rows = re.findall(r"^\| .* [↔] .* \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows
    for values, files in rows:
        paths = [PACKAGE / name for name in re.findall(r"`(.+?)`", files)]
        for value in re.findall(r"`(\w+)`", values):
            assert any(defines(path, value) for path in paths), value


def test_every_file_and_name_that_the_page_of_common_changes_gives_exists() -> None:
    sections = CHANGES.split("\n## ")[1:]
    assert len(sections) >= LEAST_CHANGES
    for section in sections:
        title = section.splitlines()[0]
        paths = re.findall(r"`((?:src|csrc|tests|docs|scripts|benchmarks)/[^`]+)`", section)
        assert len(paths) >= 3, title
        assert [path for path in paths if not (ROOT / path).exists()] == [], title


@pytest.mark.parametrize("text", [CHANGES, GLOSSARY], ids=["common changes", "glossary"])
def test_the_names_that_a_page_gives_are_defined_in_the_files_that_it_gives(text: str) -> None:
    names = re.findall(r"`([^`]+)` \(`(\w+)`\)", text)
    assert names
    assert [(path, name) for path, name in names if not defines(ROOT / path, name)] == []


def test_every_term_of_the_glossary_has_a_meaning_and_a_place() -> None:
    rows = [row.split("|")[1:-1] for row in GLOSSARY.splitlines() if row.startswith("| ") and "| | |" not in row]
    for term, meaning, place in rows[1:]:
        assert meaning.strip(), term
        assert [path for path in re.findall(r"`(\w+/[^`]+)`", place) if (ROOT / path).exists()], term
