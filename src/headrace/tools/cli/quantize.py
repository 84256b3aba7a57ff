"""`headrace quantize`: quantize to 8 bits with SmoothQuant or to 4 bits, as a folder that other programs load too."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.core.errors import SettingsError
from headrace.core.sizes import format_size
from headrace.inference.models.calibration_texts import MAX_SAMPLE_TOKENS, MAX_SAMPLES
from headrace.serving.settings.rules import share_or_auto
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import AT_LEAST_1
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.setting_options import revision_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.inference.runner.quantize import LayerReport

EXAMPLES = """
headrace quantize smollm2 ./smollm2-w8a8   8 bits, strengths found by search
headrace serve ./smollm2-w8a8              serve the result
headrace quantize my/model ./out --bits 4  4-bit weights
headrace quantize my/model ./out --alpha 0.5   the same strength everywhere
headrace quantize my/model ./out --calibration chats.jsonl   on your own texts
"""

_WEIGHTS = {
    8: "8-bit weights (one scale per row) for 8-bit activations, smoothed with SmoothQuant.",
    4: "4-bit weights: a scale and a zero point for every 32 inputs, rounded by the importance of each input.",
}
_ROUNDED = {
    8: "both sides rounded to 8 bits, by what they read",
    4: "weights rounded to 4 bits, inputs taken as uncorrelated",
}


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("model")
@click.argument("output_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--bits",
    type=click.Choice(["8", "4"]),
    default="8",
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
@click.option("--samples", type=AT_LEAST_1, default=MAX_SAMPLES, help="Maximum number of calibration texts.")
@click.option(
    "--sample-tokens", type=click.IntRange(1, 8192), default=MAX_SAMPLE_TOKENS, help="Maximum tokens of each text."
)
@revision_option
def quantize(
    *,
    model: str,
    output_dir: Path,
    revision: str | None,
    bits: str,
    alpha: str | None,
    calibration: Path | None,
    samples: int,
    sample_tokens: int,
) -> None:
    """
    Quantize MODEL to 8 bits (W8A8 with SmoothQuant) or 4 bits (W4A16) and write it to OUTPUT_DIR.

    MODEL is any model that `headrace serve` accepts. The folder has the format of Hugging Face and compressed-tensors,
    so vLLM and transformers load it too. Layers are quantized one by one: the largest must fit in memory as float32.
    """
    from headrace.inference.models.folder_export import check_is_free, new_folder

    if bits == "4" and alpha is not None:
        raise SettingsError("--alpha has no effect with --bits 4, which smooths nothing. Leave it out.")
    num_bits, alpha = int(bits), alpha or "auto"
    alphas = _strengths(alpha)
    check_is_free(output_dir)
    started_s = time.perf_counter()
    from headrace.inference.models.calibration_texts import calibration_samples
    from headrace.inference.models.loading import load_model
    from headrace.inference.runner.quantize import check_can_quantize, write_quantized

    with showing_progress() as progress:
        loaded = load_model(model, revision=revision, progress=progress)
        check_can_quantize(loaded, bits=num_bits)
        texts = calibration_samples(loaded, calibration, max_samples=samples, max_sample_tokens=sample_tokens)
        with new_folder(output_dir) as folder:
            reports = write_quantized(loaded, folder, texts, bits=num_bits, alphas=alphas, progress=progress)
            option = "--bits 4" if num_bits == 4 else f"--alpha {alpha}"
            source = "the built-in texts" if calibration is None else f"`{calibration.name}`"
            card = _model_card(loaded.name, num_bits, option, f"{sum(map(len, texts)):,} tokens of {source}", reports)
            (folder / "README.md").write_text(card, encoding="utf-8")
    size = sum(file.stat().st_size for file in output_dir.rglob("*") if file.is_file())
    click.echo(summary(reports), err=True)
    click.echo(f"{format_size(size)} written in {time.perf_counter() - started_s:.0f} s.", err=True)
    click.echo(output_dir)


def _strengths(alpha: str) -> tuple[float, ...]:
    """Return the smoothing strengths to search."""
    from headrace.inference.runner.smoothing import strengths

    rule = share_or_auto()
    try:
        return strengths(rule.read(alpha))
    except ValueError:
        raise SettingsError(f"--alpha is {alpha!r}; expected {rule.expected}.") from None


def summary(reports: "Sequence[LayerReport]") -> str:
    """Return a table of the rounding error of each kind of joint or, with 4 bits, of matrix."""
    if not reports[0].joints:
        return _summary_of_matrices(reports)
    lines = ["input of   error before   after   mean alpha"]
    for name in reports[0].joints:
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


def _model_card(name: str, bits: int, option: str, texts: str, reports: "Sequence[LayerReport]") -> str:
    from headrace import __version__

    base = f"base_model: {name}\n" if "/" in name else ""
    tags = "int4, w4a16" if bits == 4 else "int8, w8a8, smoothquant"
    return f"""\
---
{base}pipeline_tag: text-generation
tags: [compressed-tensors, {tags}]
---

# {name}, {"W4A16" if bits == 4 else "W8A8"}

{name} with {_WEIGHTS[bits]}
The embedding, the LM head and the norms are in floating point. The licence of the original model applies.

Made by Headrace {__version__}: `headrace quantize {name} OUTPUT_DIR {option}`,
calibrated on {texts}.

    headrace serve FOLDER
    vllm serve FOLDER

Error of the outputs of the matrices, root mean square, {_ROUNDED[bits]}:

```
{summary(reports)}
```
"""
