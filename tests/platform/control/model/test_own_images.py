"""The file of own images: examples of the docs are read, and errors say how to fix the file."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.own_images import read_own_images

PAGE = Path(__file__).parent.parent.parent.parent.parent / "docs" / "images.md"


def read(text):
    return read_own_images(text, source="images.toml")


def test_the_example_of_the_docs_is_read():
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert read(example) == {
        "team/server": OwnImage(
            command=("python", "-m", "server", "--port", "{port}", "--model", "{model}"),
            environment={"LOG_LEVEL": "info"},
        ),
        "123456789012.dkr.ecr.*.amazonaws.com/llm:*": OwnImage(
            dialect="lmi-0.26", options={"dtype": "w8a8", "max_num_seqs": "8"}
        ),
        "team/classifier": OwnImage(is_container=True),
    }


def test_a_command_may_be_a_list_of_arguments():
    assert read('[images.x]\ncommand = ["a b", "{port}"]')["x"].command == ("a b", "{port}")
    assert read("""[images.x]\ncommand = 'a "b c"'""")["x"].command == ("a", "b c")


def test_an_empty_file_has_no_images():
    assert read("") == {}
    assert read("[images]\n# none yet\n") == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("images", "images.toml is not TOML"),
        ("[image.x]\ncommand='a'", "should contain only tables such as"),
        ("images = 1", "should contain only tables such as"),
        ("[images]\nx = 1", "is not a table"),
        ("[images.x]\ncomand = 'a'", "comand is not known. Did you mean command?"),
        ("[images.x]\nzzz = 'a'", "zzz is not known. Known are command"),
        ("[images.x]\ncommand = 1", "expected a command line"),
        ("[images.x]\ncommand = []", "expected a command line"),
        ("[images.x]\ncommand = ''", "expected a command line"),
        ("[images.x]\ncommand = ['a', 1]", "expected a command line"),
        ("""[images.x]\ncommand = 'a "b'""", "No closing quotation"),
        ("[images.x]\ncommand = 'a'\ndialect = 'tgi-3'", "Keep one"),
        ("[images.x]\ncontainer = 'yes'", "container is 'yes'; expected true or false"),
        ("[images.x]\ncontainer = true\ncommand = 'a'", "is run as a container, and has a command"),
        ("[images.x]\ndialect = 'tgi'", "expected one of auto, tgi-1.0"),
        ("[images.x]\noptions = {dtyp = 'w8a8'}", "dtyp is not a setting of `headrace serve`. Did you mean dtype?"),
        ("[images.x]\noptions = {max_num_seqs = 0}", "max_num_seqs is '0'; expected a whole number from 1 up."),
        ("[images.x]\noptions = 1", "options is 1; expected"),
        ("[images.x]\nenvironment = {A = [1]}", "A is [1]; expected a string or a number."),
        ("[images.x]\n" + "a." * 3000 + "b = 1", "images.toml"),
    ],
)
def test_a_mistake_is_refused_with_advice(text, sentence):
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_secrets_never_show():
    with pytest.raises(SettingsError) as caught:
        read("[images.x]\noptions = {api_key = ' '}\n")
    assert "a value that cannot be read" in caught.value.message


@given(text=st.text(max_size=80) | st.text("[]images.=\"'{}\n x1", max_size=80))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(SettingsError):
        read(text)
