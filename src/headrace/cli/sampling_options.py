"""The options that say how to choose tokens: one for each field of `SamplingParams`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import SettingsError
from headrace.core.generation import Grammar, RecommendedSampling, SamplingParams

DEFAULTS = SamplingParams()
USUAL = RecommendedSampling()
RECOMMENDED = tuple(field.name for field in fields(RecommendedSampling))
"""Options for which a model may recommend a value."""

OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--max-new-tokens", "-n"), {"type": int, "help": "Longest answer, tokens."}),
    (("--min-new-tokens",), {"type": int, "help": "No end of the answer before so many tokens."}),
    (("--temperature", "-t"), {"type": float, "help": "0 always takes the likeliest token; higher is more varied."}),
    (("--top-k",), {"type": int, "help": "Choose among so many likeliest tokens; 0 is all."}),
    (
        ("--top-p",),
        {"type": float, "help": "Choose among the likeliest tokens that make up this share of probability."},
    ),
    (("--min-p",), {"type": float, "help": "Leave out tokens below this share of the likeliest one's probability."}),
    (("--typical-p",), {"type": float, "help": "Locally typical sampling (Meister et al. 2022); 1 is off."}),
    (("--repetition-penalty",), {"type": float, "help": "Above 1: tokens of prompt and answer become less likely."}),
    (("--presence-penalty",), {"type": float, "help": "Subtracted once from tokens that the answer has."}),
    (("--frequency-penalty",), {"type": float, "help": "Subtracted each time from tokens that the answer has."}),
    (("--logit-bias",), {"multiple": True, "metavar": "ID=BIAS", "help": "Add to one token's logit. Repeatable."}),
    (("--seed",), {"type": int, "help": "The same seed gives the same answer, whatever else runs."}),
    (("--stop",), {"multiple": True, "metavar": "TEXT", "help": "End the answer before this text. Repeatable."}),
    (("--stop-token-ids",), {"type": int, "multiple": True, "metavar": "ID", "help": "End at this token. Repeatable."}),
    (("--include-stop",), {"is_flag": True, "help": "Keep the stop text at the end of the answer."}),
    (("--ignore-eos",), {"is_flag": True, "help": "Go on after the model's end of answer, to --max-new-tokens."}),
    (("--skip-special-tokens/--show-special-tokens",), {"help": "Whether special tokens are left out of the text."}),
    (("--n", "n"), {"type": int, "help": "So many different answers."}),
    (("--best-of",), {"type": int, "help": "Make so many answers and keep the --n likeliest."}),
    (("--logprobs",), {"type": int, "help": "With --json: log probabilities, and those of so many alternatives."}),
    (("--prompt-logprobs",), {"type": int, "help": "With --json: the same for the tokens of the prompt."}),
)

GRAMMAR_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--json-schema", {"metavar": "FILE|TEXT", "help": "The answer is JSON that fits this schema."}),
    ("--json-object", {"is_flag": True, "help": "The answer is a JSON object."}),
    ("--regex", {"help": "The answer matches this regular expression."}),
    ("--lark", {"metavar": "FILE|TEXT", "help": "The answer follows this Lark grammar."}),
)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def sampling_options(*, without: Collection[str] = (), **defaults: object) -> Decorator:
    """Add the sampling options but those `without`; `defaults` replace those of `SamplingParams` for this command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for flag, details in reversed(GRAMMAR_OPTIONS):
            command = click.option(flag, **details)(command)
        for names, details in reversed(OPTIONS):
            name = names[-1].removeprefix("--") if len(names) > 1 and names[-1].isidentifier() else names[0]
            field = name.split("/")[0].removeprefix("--").replace("-", "_")
            if field in without:
                continue
            default = defaults.get(field, getattr(DEFAULTS, field))
            shown = {"default": default, "show_default": default is not None and not details.get("multiple")}
            if default is None and field in RECOMMENDED:
                shown["show_default"] = f"what the model recommends, else {getattr(USUAL, field)}"
            if details.get("multiple"):
                shown = {}
            command = click.option(*names, **{**shown, **details})(command)
        return command

    return decorate


def sampling_params(given: Mapping[str, Any], recommended: RecommendedSampling = USUAL) -> SamplingParams:
    """
    Return the parameters that the options ask for, with `recommended` where they are None; the engine checks ranges.

    Raises:
        SettingsError: a bias or a grammar cannot be read.
    """
    values = {field.name: given[field.name] for field in fields(SamplingParams) if field.name in given}
    values |= {name: getattr(recommended, name) for name in RECOMMENDED if values.get(name, 0) is None}
    values["logit_bias"] = dict(map(_bias, given["logit_bias"]))
    return SamplingParams(**values, grammar=_grammar(given))


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise SettingsError(f"--logit-bias is {text!r}; wanted: a token id and a number, such as 42=-1.5.") from None


def _grammar(given: Mapping[str, Any]) -> Grammar | None:
    found = [
        Grammar("json_schema", _file_or_text(given["json_schema"])) if given["json_schema"] else None,
        Grammar("json_object") if given["json_object"] else None,
        Grammar("regex", given["regex"]) if given["regex"] else None,
        Grammar("lark", _file_or_text(given["lark"])) if given["lark"] else None,
    ]
    grammars = [grammar for grammar in found if grammar is not None]
    if len(grammars) > 1:
        raise SettingsError("Only one of --json-schema, --json-object, --regex and --lark can be given.")
    return grammars[0] if grammars else None


def _file_or_text(value: str) -> str:
    """The content of a file of that name, else the text itself."""
    if "\n" in value or value.lstrip().startswith("{"):
        return value
    path = Path(value)
    return path.read_text(encoding="utf-8") if path.is_file() else value
