"""Requirements are compared by the content of everything that the installer reads."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.handlers.requirements_file import Requirements, read_requirements


def requirements(folder: Path, text: str) -> Requirements:
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(text)
    read = read_requirements(folder / "requirements.txt")
    assert read is not None
    return read


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("numpy>=1  # arrays\n-r more.txt\n./local\n")
    (tmp_path / "more.txt").write_text("-c constraints.txt\n-r requirements.txt\n")
    (tmp_path / "constraints.txt").write_text("numpy<3\n")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "setup.py").write_text("1")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").write_bytes(b"1")
    return path


def digest(file: Path) -> str:
    requirements = read_requirements(file)
    assert requirements is not None
    return requirements.digest


@pytest.mark.parametrize(
    "name",
    ["requirements.txt", "more.txt", "constraints.txt", "local/setup.py", "wheels/a-1-py3-none-any.whl"],
)
def test_each_file_that_is_read_counts(file, name) -> None:
    before = digest(file)
    path = file.parent / name
    path.write_bytes(path.read_bytes() + b"\n# other")
    assert digest(file) != before


def test_the_place_of_the_folder_does_not_count(file, tmp_path) -> None:
    before = digest(file)
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    assert digest(moved / "requirements.txt") == before


def test_other_files_do_not_count(file) -> None:
    before = digest(file)
    (file.parent / "model.py").write_text("print()")
    assert digest(file) == before


@pytest.mark.parametrize("text", ["", "\n \n", "# numpy\n", "\ufeff# nothing\n"])
def test_a_file_without_packages_asks_for_no_environment(tmp_path, text) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert read_requirements(tmp_path / "requirements.txt") is None


@pytest.mark.parametrize("line", ["x" * 5000, "a/../../b", "name @ https://host/x.whl", "-e", "-r", "\x00", "--pre"])
def test_lines_that_name_no_local_file_are_left_to_the_installer(tmp_path, line) -> None:
    (tmp_path / "requirements.txt").write_text(line)
    assert read_requirements(tmp_path / "requirements.txt") is not None


@pytest.mark.parametrize("name", ["requirements", "wheels"])
def test_a_folder_of_packages_is_found(tmp_path, name) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("a")
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("")
    assert read_requirements(file).wheels is None  # type: ignore[union-attr]
    (tmp_path / name / "a-1-py3-none-any.whl").write_bytes(b"")
    assert read_requirements(file).wheels == tmp_path / name  # type: ignore[union-attr]


NEURON = """\
--extra-index-url https://pip.repos.neuron.amazonaws.com
torch-neuronx==1.13.1.1.9.0
Transformers_NeuronX>=0.5 ; python_version < "4"
transformers==4.31.0
-r more.txt
--constraint=https://host/constraints.txt
"""


def test_packages_of_neuron_devices_are_left_out_and_other_lines_can_be_read_from_elsewhere(tmp_path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(NEURON)
    (tmp_path / "more.txt").write_text("sentencepiece\n")
    read = read_requirements(path)
    assert read is not None
    assert read.left_out == ("torch-neuronx==1.13.1.1.9.0", 'Transformers_NeuronX>=0.5 ; python_version < "4"')
    assert read.installed_lines() == [
        "--extra-index-url https://pip.repos.neuron.amazonaws.com",
        "transformers==4.31.0",
        f"-r {tmp_path / 'more.txt'}",
        "--constraint=https://host/constraints.txt",
    ]


def test_requirements_of_neuron_devices_alone_ask_for_no_environment(tmp_path) -> None:
    (tmp_path / "requirements.txt").write_text("--extra-index-url https://host\nneuronx-cc\ntorch-neuronx\n")
    assert read_requirements(tmp_path / "requirements.txt") is None


def test_names_that_contain_the_letters_of_an_option_are_kept(tmp_path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("google-cloud-storage\nopencv-contrib-python\n-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    read = read_requirements(file)
    assert read is not None
    assert read.installed_lines() == ["google-cloud-storage", "opencv-contrib-python", f"-c {tmp_path}/limits.txt"]


@pytest.mark.parametrize("name", ["requirements.txt", "more.txt", "constraints.txt"])
def test_a_file_of_gigabytes_is_refused(file, name) -> None:
    with (file.parent / name).open("ab") as stream:
        stream.truncate(4 << 30)  # sparse, as an archive may have it
    with pytest.raises(SettingsError, match=f"{name} is too large: expected at most 1048576 bytes"):
        read_requirements(file)
