"""`headrace quantize`: quantize to 8 bits with SmoothQuant or to 4 bits, as a folder that other programs load too."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.core.errors import SettingsError
from headrace.core.sizes import format_size
from headrace.inference.models.calibration_texts import MAX_SAMPLE_TOKENS, MAX_SAMPLES
from headrace.serving.settings.rules import share_or_auto
from headrace.tools.cli.group import Examples
from headrace.tools.cli.progress import showing_progress

if TYPE_CHECKING:
    from headrace.inference.models.model import Model
    from headrace.inference.runner.quantize import LayerReport

EXAMPLES = """
headrace quantize smollm2 ./smollm2-w8a8                    built-in texts, strengths found by search
headrace serve ./smollm2-w8a8                               serve the result
headrace quantize my/model ./out --calibration chats.jsonl  calibrate on texts like those you will serve
headrace quantize my/model ./out --alpha 0.5                the same strength everywhere
headrace quantize my/model ./out --bits 4                   4-bit weights, rounded by the importance of their inputs
"""


_WEIGHTS = {
    8: "8-bit weights (one scale per row) for 8-bit activations, smoothed with SmoothQuant.",
    4: "4-bit weights: a scale and a zero point for every 32 inputs, rounded by the importance of each input.",
}
_ROUNDED = {
    8: "both sides rounded to 8 bits, by what they read",
    4: "weights rounded to 4 bits, inputs taken as uncorrelated",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The options that determine the result."""

    bits: int
    alpha: str
    calibration: Path | None
    samples: int
    sample_tokens: int


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model")
@click.argument("output_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--bits",
    type=click.Choice(["8", "4"]),
    default="8",
    show_default=True,
    help="Bits of a weight: 8 with 8-bit activations (W8A8), or 4 with activations as they are (W4A16).",
)
@click.option(
    "--alpha",
    metavar="[auto|0..1]",
    help="Strength of smoothing with 8 bits: searched for each joint, a fixed number, or 0 for none.  [default: auto]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Calibration file: plain text, or .jsonl lines with 'text' or 'messages'.  [default: built-in texts]",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=MAX_SAMPLES,
    show_default=True,
    help="Maximum number of calibration texts.",
)
@click.option(
    "--sample-tokens",
    type=click.IntRange(1, 8192),
    default=MAX_SAMPLE_TOKENS,
    show_default=True,
    help="Maximum tokens of each text.",
)
@click.option("--revision", help="Branch, tag or commit of a Hub model.")
def quantize(*, model: str, output_dir: Path, revision: str | None, bits: str, **options: Any) -> None:
    """
    Quantize MODEL to 8 bits (W8A8 with SmoothQuant) or 4 bits (W4A16) and write it to OUTPUT_DIR.

    MODEL is any model that `headrace serve` accepts. The folder has the format of Hugging Face and compressed-tensors,
    so vLLM and transformers load it too. Layers are quantized one by one: the largest must fit in memory as float32.
    """
    from headrace.inference.models.folder_export import check_is_free

    if bits == "4" and options["alpha"] is not None:
        raise SettingsError("--alpha has no effect with --bits 4, which smooths nothing. Leave it out.")
    chosen = _Options(bits=int(bits), **options | {"alpha": options["alpha"] or "auto"})
    alphas = parse_alpha(chosen.alpha)
    check_is_free(output_dir)
    started_s = time.perf_counter()
    reports = _run(model, revision, output_dir, chosen, alphas)
    size = sum(file.stat().st_size for file in output_dir.rglob("*") if file.is_file())
    click.echo(summary(reports), err=True)
    click.echo(f"{format_size(size)} written in {time.perf_counter() - started_s:.0f} s.", err=True)
    click.echo(output_dir)


def parse_alpha(text: str) -> tuple[float, ...]:
    """
    Return the smoothing strengths to search.

    Raises:
        SettingsError: the text is neither `auto` nor a number from 0 to 1.
    """
    from headrace.inference.runner.smoothing import strengths

    rule = share_or_auto()
    try:
        return strengths(rule.read(text))
    except ValueError:
        raise SettingsError(f"--alpha is {text!r}; expected {rule.expected}.") from None


def summary(reports: "Sequence[LayerReport]") -> str:
    """Return a table of the rounding error of each kind of joint or, with 4 bits, of matrix."""
    if not reports[0].joints:
        return _summary_of_matrices(reports)
    names = list(reports[0].joints)
    lines = ["input of   error before   after   mean alpha"]
    for name in names:
        joints = [report.joints[name] for report in reports]
        before, after = (
            100 * (sum(values) / len(joints)) ** 0.5
            for values in ([joint.error_before for joint in joints], [joint.error for joint in joints])
        )
        alpha = sum(joint.alpha for joint in joints) / len(joints)
        lines.append(f"{name:<8}   {before:>10.2f} %   {after:.2f} %   {alpha:>8.2f}")
    return "\n".join(lines)


def _summary_of_matrices(reports: "Sequence[LayerReport]") -> str:
    by_part: dict[str, list[float]] = {}
    for report in reports:
        for name, error in report.errors.items():
            by_part.setdefault(name.rpartition(".")[2], []).append(error)  # all experts together
    lines = ["outputs of   error"]
    for part, errors in by_part.items():
        lines.append(f"{part:<10}   {100 * (sum(errors) / len(errors)) ** 0.5:.2f} %")
    return "\n".join(lines)


def _run(
    name: str, revision: str | None, output_dir: Path, chosen: _Options, alphas: Sequence[float]
) -> "list[LayerReport]":
    from headrace.inference.models.calibration_texts import calibration_samples
    from headrace.inference.models.folder_export import new_folder
    from headrace.inference.models.loading import load_model
    from headrace.inference.runner.quantize import check_can_quantize
    from headrace.inference.runner.quantized_folder import write_quantized

    with showing_progress() as progress:
        model = load_model(name, revision=revision, progress=progress)
        check_can_quantize(model, bits=chosen.bits)
        samples = calibration_samples(
            model, chosen.calibration, max_samples=chosen.samples, max_sample_tokens=chosen.sample_tokens
        )
        with new_folder(output_dir) as folder:
            reports = write_quantized(model, folder, samples, bits=chosen.bits, alphas=alphas, progress=progress)
            card = model_card(model, chosen, reports, num_tokens=sum(map(len, samples)))
            (folder / "README.md").write_text(card, encoding="utf-8")
    return reports


def model_card(model: "Model", chosen: _Options, reports: "Sequence[LayerReport]", *, num_tokens: int) -> str:
    """Return the README of the folder: its content and how it was created."""
    from headrace import __version__

    base = f"base_model: {model.name}\n" if "/" in model.name else ""
    texts = "the built-in texts" if chosen.calibration is None else f"`{chosen.calibration.name}`"
    is_int4 = chosen.bits == 4
    tags = "int4, w4a16" if is_int4 else "int8, w8a8, smoothquant"
    option = "--bits 4" if is_int4 else f"--alpha {chosen.alpha}"
    return f"""\
---
{base}pipeline_tag: text-generation
tags: [compressed-tensors, {tags}]
---

# {model.name}, {"W4A16" if is_int4 else "W8A8"}

{model.name} with {_WEIGHTS[chosen.bits]}
The embedding, the LM head and the norms are in floating point. The licence of the original model applies.

Made by Headrace {__version__}: `headrace quantize {model.name} OUTPUT_DIR {option}`,
calibrated on {num_tokens:,} tokens of {texts}.

    headrace serve FOLDER
    vllm serve FOLDER

Error of the outputs of the matrices, root mean square, {_ROUNDED[chosen.bits]}:

```
{summary(reports)}
```
"""
