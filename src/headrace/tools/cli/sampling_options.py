"""The sampling options: one for each field of `SamplingParams`."""

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import SettingsError
from headrace.core.generation import Grammar, RepetitionDetection, SamplingParams
from headrace.core.sampling_defaults import RECOMMENDED, RecommendedSampling
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.group import Decorator, all_of

DEFAULTS = SamplingParams()
USUAL = RecommendedSampling()

_OPTIONS: dict[str, dict[str, Any]] = {
    "--max-new-tokens -n": {"type": int, "help": "Maximum tokens of the answer; fewer if the context ends before."},
    "--min-new-tokens": {"type": int, "help": "Minimum tokens of the answer."},
    "--temperature -t": {"type": float, "help": "0 always takes the most likely token; higher is more random."},
    "--top-k": {"type": int, "help": "Sample from the k most likely tokens; 0 is all."},
    "--top-p": {"type": float, "help": "Sample from the most likely tokens whose probabilities sum up to this."},
    "--min-p": {"type": float, "help": "Drop tokens below this fraction of the highest probability."},
    "--typical-p": {"type": float, "help": "Locally typical sampling (Meister et al. 2022); 1 is off."},
    "--repetition-penalty": {"type": float, "help": "Above 1, tokens of prompt and answer become less likely."},
    "--presence-penalty": {"type": float, "help": "Subtracted from the logit of tokens in the answer."},
    "--frequency-penalty": {"type": float, "help": "Subtracted for each occurrence of a token in the answer."},
    "--logit-bias": {"multiple": True, "metavar": "ID=BIAS", "help": "Add to a token's logit. Repeatable."},
    "--seed": {"type": int, "help": "Random seed; the same seed gives the same answer in any batch."},
    "--stop": {"multiple": True, "metavar": "TEXT", "help": "End the answer before this text. Repeatable."},
    "--stop-token-ids": {"type": int, "multiple": True, "metavar": "ID", "help": "End at this token. Repeatable."},
    "--include-stop": {"is_flag": True, "help": "Keep the stop text at the end of the answer."},
    "--ignore-eos": {"is_flag": True, "help": "Generate past the model's end of text, up to --max-new-tokens."},
    "--skip-special-tokens/--show-special-tokens": {"help": "Remove special tokens from the text, or show them."},
    "--num-answers": {"type": int, "help": "Number of answers."},
    "--best-of": {"type": int, "help": "Generate this many answers and keep the --num-answers most likely ones."},
    "--logprobs": {"type": int, "help": "With --json: log probabilities of the tokens and of N alternatives."},
    "--prompt-logprobs": {"type": int, "help": "With --json: the same for the tokens of the prompt."},
}
"""The flags of each field of `SamplingParams`, the first of which is its name, and their details."""
_FIELDS = {"--num-answers": "n"}
"""Fields with another name than their flag."""
_CONSTRAINTS: dict[str, dict[str, Any]] = {
    "--json-schema": {"metavar": "FILE|TEXT", "help": "Constrain the answer to this JSON schema."},
    "--json-object": {"is_flag": True, "help": "Constrain the answer to a JSON object."},
    "--regex": {"help": "Constrain the answer to this regular expression."},
    "--lark": {"metavar": "FILE|TEXT", "help": "Constrain the answer to this Lark grammar."},
    "--allow-repetition": {
        "is_flag": True,
        "help": "Let an answer go on that repeats itself; by default it ends, and stderr says so.",
    },
}
SAMPLING_GROUPS = {
    "Answer": (
        *("max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos"),
        *("skip_special_tokens", "allow_repetition", "n", "best_of", "logprobs", "prompt_logprobs"),
    ),
    "Sampling": (
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "logit_bias", "seed"),
    ),
    "Constraints": ("json_schema", "json_object", "regex", "lark"),
}
"""The names of the options by the title of their group."""
MAX_NEW_TOKENS = 1024
"""Default of `generate` and `invoke`: most answers are shorter, and at 20 tokens/s it takes 50 s."""


def sampling_options(*, without: Collection[str] = (), **defaults: object) -> Decorator:
    """Add all sampling options except `without`; `defaults` override those of `SamplingParams` for this command."""
    options = []
    for flags, details in _OPTIONS.items():
        flag = re.split("[ /]", flags)[0]
        field = _FIELDS.get(flag, flag.removeprefix("--").replace("-", "_"))
        default = defaults.get(field, getattr(DEFAULTS, field))
        shown: dict[str, Any] = {"default": default, "show_default": default is not None}
        if default is None and field in RECOMMENDED:
            shown["help"] = f"{details['help']}  [default: the model's, else {getattr(USUAL, field):g}]"
        if details.get("multiple"):
            shown = {}
        if field not in without:
            options.append(click.option(*flags.split(), field, **{**details, **shown}))
    return all_of([*options, *(click.option(flag, **details) for flag, details in _CONSTRAINTS.items())])


def sampling_option(flags: str, *, note: str, default: float | None = None) -> Decorator:
    """Return one of the options for a command that has only a few; `note` describes its default."""
    details = _OPTIONS[flags]
    text = f"{details['help']}  [default: {note}]"
    return click.option(*flags.split(), **{**details, "help": text, "default": default, "show_default": False})


def sampling_params(options: Mapping[str, Any], recommended: RecommendedSampling = USUAL) -> SamplingParams:
    """
    Return the parameters of the options, with `recommended` where an option is None; the engine checks ranges.

    Raises:
        SettingsError: a bias or a grammar is invalid.
    """
    values = {field.name: options[field.name] for field in fields(SamplingParams) if field.name in options}
    values |= {name: getattr(recommended, name) for name in RECOMMENDED if values.get(name, 0) is None}
    values["logit_bias"] = dict(map(_bias, values["logit_bias"]))
    goes_on = options["allow_repetition"] or options["ignore_eos"]
    rule = None if goes_on else RepetitionDetection()
    return SamplingParams(**values, grammar=_grammar(options), repetition_detection=rule)


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise SettingsError(f"--logit-bias is {text!r}; expected a token id and a number, such as 42=-1.5.") from None


def _grammar(options: Mapping[str, Any]) -> Grammar | None:
    choices = [
        Grammar("json_schema", _file_or_text(options, "json_schema")) if options["json_schema"] else None,
        Grammar("json_object") if options["json_object"] else None,
        Grammar("regex", options["regex"]) if options["regex"] else None,
        Grammar("lark", _file_or_text(options, "lark")) if options["lark"] else None,
    ]
    grammars = [grammar for grammar in choices if grammar is not None]
    if len(grammars) > 1:
        raise SettingsError("Only one of --json-schema, --json-object, --regex and --lark can be given.")
    return grammars[0] if grammars else None


def _file_or_text(options: Mapping[str, Any], name: str) -> str:
    """Return the content of the file that an option names, else its text; refuse the name of a missing file."""
    value: str = options[name]
    if "\n" in value or value.lstrip().startswith("{"):
        return value
    path = Path(value)
    if path.suffix in {".json", ".lark"} and not path.is_file():
        raise SettingsError(f"{flag_name(name)} is {value}; expected a file that exists, or the text itself.")
    return path.read_text(encoding="utf-8") if path.is_file() else value
