import importlib
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from headrace import __version__
from headrace.serving.settings.server_settings import setting_names
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.main import COMMANDS, cli

from .cli_page import cli_page, leaves

LEAVES = [(leaf.path, leaf.command) for leaf in leaves()]


def test_the_version_is_that_of_the_package(headrace) -> None:
    assert __version__ in headrace("--version").stdout


def test_help_lists_every_command_with_its_line(headrace) -> None:
    shown = headrace("--help").stdout
    for name, entry in COMMANDS.items():
        if entry.is_hidden:
            continue
        assert name in shown
        assert entry.summary in shown


@pytest.mark.parametrize(
    ("path", "command"), LEAVES, ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_explains_itself_and_each_option_and_gives_examples(headrace, path, command) -> None:
    result = headrace(*path, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert isinstance(command, HelpfulCommand)
    assert f"headrace {' '.join(path)}" in command.examples
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_every_setting_is_a_flag_of_serve(headrace) -> None:
    serve = dict(LEAVES)[("serve",)]
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    assert {flag_name(name) for name in setting_names() if name != "model"} <= flags


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("srve", "Did you mean `headrace serve`?"),
        ("run smollm2", "Did you mean `headrace chat`?"),
        ("models lst", "Did you mean `headrace models ls`?"),
        ("frobnicate", "Commands: serve, chat,"),
        ("serve --prot 1", "Did you mean --port?"),
        ("serve --model smollm2", "MODEL is an argument"),
        ("serve m -p 80", "Did you mean --port?"),
        ("deploy m --gpus 1", "Did you mean --instance-type?"),
        ("serve --frobnicate", "--help-all lists the options."),
        ("generate m --raw", "Did you mean --completion?"),
        ("chat m --max-tokens 5", "Did you mean --max-new-tokens?"),
        ("deploy m --memory 5", "Did you mean --memory-mb?"),
        ("deploy m --instances 0", "Invalid value for '--instances': 0; expected 1 to 100."),
        ("generate m -n x", "'x'; expected a whole number."),
        ("chat m -t x", "'x'; expected a number."),
        ("env --format x", "'x'; expected one of 'sh', 'dotenv'."),
        ("--port 80 serve m", "Options of a command follow its name"),
    ],
)
def test_a_wrong_command_option_or_value_says_what_is_meant_or_expected(headrace, words: str, hint: str) -> None:
    result = headrace(*words.split())
    assert result.exit_code == 2
    assert hint in result.stderr


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    heavy = {
        "torch",
        "transformers",
        "numpy",
        "rich.console",
        "httpx",
        "jinja2",
        "uvicorn",
        "starlette",
        "gguf",
        "llguidance",
    }
    code = (
        "import sys\nfrom headrace.tools.cli.main import cli\n"
        f"cli({args!r}, standalone_mode=False)\n"
        "print('\\n' + ' '.join(sys.modules), flush=True)"
    )
    assert not heavy & set(run_python(code).splitlines()[-1].split())


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_entries_lead_to_commands_of_their_name() -> None:
    for name, entry in COMMANDS.items():
        assert getattr(importlib.import_module(entry.module), entry.attribute).name == name


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        ("headrace.core.errors.ModelNotFound('No such model: x.')", 2),
        ("headrace.core.errors.EngineFailed('A step failed.')", 1),
        ("ZeroDivisionError('division by zero')", 1),
        ("FileNotFoundError(2, 'No such file or directory', 'x.jsonl')", 1),
        ("KeyboardInterrupt()", 130),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(error: str, exit_code: int) -> None:
    code = (
        "import headrace.core.errors, click\nfrom headrace.tools.cli.main import cli\n"
        "@click.command()\ndef fails():\n"
        f"    raise {error}\n"
        "cli.get_command = lambda ctx, name: fails\n"
        "cli(['doctor'], prog_name='headrace')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == (0 if exit_code == 130 else 1)


def test_debug_adds_the_traceback() -> None:
    code = (
        "import click\nfrom headrace.tools.cli.main import cli\n"
        "@click.command()\ndef fails():\n    raise ValueError('deep down')\n"
        "cli.get_command = lambda ctx, name: fails\n"
        "cli(['--debug', 'doctor'], prog_name='headrace')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "deep down" in done.stderr


def test_the_page_of_the_docs_has_every_command_and_option() -> None:
    page = "\n".join(cli_page())
    for path, command in LEAVES:
        assert f"## headrace {' '.join(path)}\n" in page
        if path not in {("serve",), ("up",)}:
            for parameter in command.params:
                assert isinstance(parameter, click.Argument) or parameter.opts[0] in page


@pytest.mark.parametrize("command", [(), ("deploy",), ("models", "rm")])
def test_help_prints_the_help_of_a_command(headrace, command: tuple[str, ...]) -> None:
    shown = headrace("help", *command)
    assert (shown.exit_code, shown.stdout) == (0, headrace(*command, "--help").stdout)


def test_help_of_an_unknown_command_suggests_a_near_one(headrace) -> None:
    result = headrace("help", "deplyo")
    assert result.exit_code == 2
    assert "Did you mean `headrace deploy`?" in result.stderr
    assert "deploy has no command 'x'" in headrace("help", "deploy", "x").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(headrace, shell: str) -> None:
    result = headrace("completion", shell)
    assert result.exit_code == 0, result.stderr
    assert f"_HEADRACE_COMPLETE={shell}_complete" in result.stdout


def test_commands_and_options_are_completed() -> None:
    def completed(*args: str, word: str) -> list[str]:
        found = ShellComplete(cli, {}, "headrace", "_HEADRACE_COMPLETE").get_completions(list(args), word)
        return [item.value for item in found]

    assert completed(word="de") == ["deploy", "describe"]
    assert completed("deploy", word="--inst") == ["--instances", "--instance-type"]
    assert "--debug" in completed(word="--")
    assert "worker" not in completed(word="")
