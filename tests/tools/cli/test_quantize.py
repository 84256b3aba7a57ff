"""`headrace quantize` writes folders that load, with the numbers that it reports."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from headrace.inference.models.decoding import decode
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.models.places import folder_places, gguf_name
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.quantize import _KNOWN_PARTS, _REQUIRED_PARTS
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_gguf,
)
from tests.inference.runner.native_models import LIMITS
from tests.inference.runner.states import new_sequences
from tests.inference.runner.steps import make_step
from tests.parity.checkpoints import config_of, write_checkpoint
from tests.parity.networks import NETWORKS
from tests.parity.test_layouts import LAYOUTS, write_layout

TOKENS = [3, 99, 17, 255, 42, 42, 7, 130, 250, 12]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_checkpoint("llama", folder)
    return folder


def logits(folder):
    model = load_model(str(folder))
    limits = replace(LIMITS, num_state_slots=1) if model.spec.has_state else LIMITS
    step = make_step(
        (TOKENS, 0, [0]), all_rows=True, states=new_sequences(len(TOKENS)) if model.spec.has_state else None
    )
    return ReferenceRunner(model.spec, model.weights, limits).logits(step)


def quantize(headrace, source, target, *options):
    result = headrace("quantize", source, target, "--samples", 2, "--sample-tokens", 40, *options)
    assert result.exit_code == 0, result.stderr
    return result


@cache
def can_be_quantized(name):
    """Return True unless layers have experts, plain MLPs, biased norms, norms without weights or different heads."""
    family, spec = from_config(Fields(config_of(name), "config.json"))
    parts = {part.rpartition(".")[2] for part in expected_shapes(spec) if part.startswith("layers.")}
    has_ones = any(place.is_ones for place in folder_places(family, spec).values())
    return spec.moe is None and not has_ones and not spec.attention_shapes and _REQUIRED_PARTS <= parts <= _KNOWN_PARTS


@pytest.mark.parametrize("name", [name for name in NETWORKS if can_be_quantized(name)])
def test_every_family_computes_nearly_the_same_from_its_int8_folder(headrace, tmp_path, name):
    write_checkpoint(name, tmp_path / "source")
    quantize(headrace, tmp_path / "source", tmp_path / "out")

    before, after = logits(tmp_path / "source"), logits(tmp_path / "out")
    assert np.abs(after - before).std() < 0.05 * before.std()
    assert load_model(str(tmp_path / "out")).spec == load_model(str(tmp_path / "source")).spec


def test_eight_bits_are_refused_for_experts_with_other_ways(headrace, tmp_path):
    write_checkpoint("mixtral", tmp_path / "source")
    result = headrace("quantize", tmp_path / "source", tmp_path / "out")
    assert result.exit_code == 2
    assert "has experts" in result.stderr
    assert "--bits 4" in result.stderr
    assert "--dtype w8a8" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["arcee", "gpt neox"])
def test_layers_of_another_kind_are_refused_with_the_way_to_serve_them(headrace, tmp_path, name):
    write_checkpoint(name, tmp_path / "source")
    result = headrace("quantize", tmp_path / "source", tmp_path / "out")
    assert result.exit_code == 2
    assert "--bits 4" in result.stderr
    assert "--dtype w8a8" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt 2", "stored transposed"),
        ("granite moe", "stack the experts"),
        ("gpt oss", "experts with biases"),
        ("apertus", "numbers of its activations"),
        ("stablelm, norms by head", "norms for each head"),
        ("mistral's params.json", "a config.json"),
        ("olmo hybrid", "convolutions are stored in parts"),
        ("falcon h1", "matrices have factors"),
        ("mistral 4", "latent attention"),
        ("gemma 4, experts", "stack the experts"),
    ],
)
def test_folders_that_other_programs_could_not_read_are_refused(headrace, tmp_path, name, kind):
    (write_layout if name in LAYOUTS else write_checkpoint)(name, tmp_path / "source")
    result = headrace("quantize", tmp_path / "source", tmp_path / "out", "--bits", 4)
    assert (result.exit_code, kind in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


IMAGES = [name for name, (_, values) in NETWORKS.items() if "vision_config" in values and can_be_quantized(name)]


@pytest.mark.parametrize("name", IMAGES)
def test_the_text_part_of_a_network_with_images_becomes_a_network_for_text(headrace, tmp_path, name):
    import transformers
    from safetensors.torch import load_file

    write_checkpoint(name, tmp_path / "source")
    quantize(headrace, tmp_path / "source", tmp_path / "out")

    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    (architecture,) = config.architectures
    network = getattr(transformers, architecture)(config)
    written = {key for key in load_file(tmp_path / "out" / "model.safetensors") if not key.endswith("_scale")}
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert written == set(network.state_dict()) - tied
    assert not hasattr(config, "vision_config")


def test_matrices_are_int8_with_a_scale_a_row_and_the_rest_is_float(headrace, llama, tmp_path):
    quantize(headrace, llama, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    model = load_model(str(tmp_path / "out"))
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert model.weights.dominant_encoding is Encoding.I8
    assert model.weights.load("layers.0.down").encoding is Encoding.I8
    assert model.weights.load("embed").encoding is Encoding.BF16
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (llama / "tokenizer.json").read_bytes()
    assert "smoothed with SmoothQuant" in (tmp_path / "out" / "README.md").read_text()


def test_without_smoothing_each_row_is_rounded_by_its_largest_number(headrace, llama, tmp_path):
    quantize(headrace, llama, tmp_path / "out", "--alpha", 0)
    source, written = load_model(str(llama)).weights, load_model(str(tmp_path / "out")).weights
    norms = [decode(weights.load("layers.1.mlp_norm")) for weights in (source, written)]
    original = decode(source.load("layers.1.gate")) * (norms[0] / norms[1])
    raw = written.load("layers.1.gate")
    scales = raw.data[:, :4].copy().view("<f4")
    np.testing.assert_array_equal(raw.data[:, 4:].view(np.int8), np.rint(original / scales))
    assert (scales >= np.abs(original).max(axis=1, keepdims=True) / 127).all()


def test_a_gguf_file_becomes_a_folder_with_tokenizer_and_template(headrace, tmp_path):
    _, spec = from_config(Fields(TINY_LLAMA, "config.json"))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    words = gguf_vocabulary(byte_level_tokenizer()) | {"tokenizer.chat_template": "{{ messages[0].content }}"}
    write_gguf(tmp_path / "tiny.gguf", gguf_metadata(spec) | words, tensors)
    quantize(headrace, tmp_path / "tiny.gguf", tmp_path / "out")

    source, written = load_model(str(tmp_path / "tiny.gguf")), load_model(str(tmp_path / "out"))
    text = "Don't panic, it's 1234567 o'clock! 日本語"
    assert written.tokenizer.encode(text) == source.tokenizer.encode(text)
    assert written.tokenizer.eos_token_ids == source.tokenizer.eos_token_ids
    assert written.chat_template.templates == source.chat_template.templates
    before, after = logits(tmp_path / "tiny.gguf"), logits(tmp_path / "out")
    assert np.abs(after - before).std() < 0.05 * before.std()


def test_calibration_texts_of_the_user_are_read(headrace, llama, tmp_path):
    lines = [{"text": "The quick brown fox"}, {"messages": [{"role": "user", "content": "Tab and spaces"}]}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    quantize(headrace, llama, tmp_path / "out", "--calibration", tmp_path / "own.jsonl")
    assert "`own.jsonl`" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is not an object; expected one"),
        ('{"messages": "hi"}', "line 1 has no text; expected 'text', or 'messages'"),
        ("", "contains no calibration text"),
    ],
)
def test_an_invalid_calibration_file_is_refused_with_the_line(headrace, llama, tmp_path, content, named):
    (tmp_path / "bad.jsonl").write_text(content)
    result = headrace("quantize", llama, tmp_path / "out", "--calibration", tmp_path / "bad.jsonl")
    assert result.exit_code == 2
    assert named in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("alpha", ["2", "-0.1", "much", "nan"])
def test_an_invalid_alpha_is_refused(headrace, llama, tmp_path, alpha):
    result = headrace("quantize", llama, tmp_path / "out", "--alpha", alpha)
    assert result.exit_code == 2
    assert "expected auto or a number from 0 to 1" in result.stderr


def test_a_missing_calibration_file_a_full_folder_and_an_int8_model_are_refused(headrace, llama, tmp_path):
    missing = headrace("quantize", llama, tmp_path / "out", "--calibration", tmp_path / "none.txt")
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)
    full = headrace("quantize", llama, llama)
    assert (full.exit_code, "already exists" in full.stderr) == (2, True)
    quantize(headrace, llama, tmp_path / "out")
    again = headrace("quantize", tmp_path / "out", tmp_path / "twice")
    assert (again.exit_code, "int8 already" in again.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.model
def test_the_folder_of_a_real_model_answers_in_a_process(smollm2_path, tmp_path):
    def run(*args):
        command = [sys.executable, "-m", "headrace", *map(str, args)]
        env = os.environ | {"HEADRACE_HOME": str(tmp_path / "home")}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return done

    folder = tmp_path / "int8"
    run("quantize", smollm2_path, folder, "--alpha", 0.6, "--samples", 2, "--sample-tokens", 64)
    options = ("--completion", "-n", 4, "--max-model-len", 512, "--max-num-seqs", 2)
    shown = run("generate", folder, "-p", "The capital of France is", *options)
    assert "Paris" in shown.stdout


@pytest.mark.model
def test_an_interrupt_leaves_nothing_behind(smollm2_path, tmp_path):
    command = [sys.executable, "-m", "headrace", "quantize", str(smollm2_path), str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "Quantizing" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    assert not list(tmp_path.iterdir())
