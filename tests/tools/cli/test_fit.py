import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InsufficientMemory, UnsupportedModel
from headrace.inference.engine.loading.formats import Formats
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.models.quantized.registry import promised_bits, promised_format
from headrace.inference.runner.memory import MemoryPlan
from headrace.tools.cli.fit_report import FORMATS, Advice, FormatFit, advice_text, advise, fit_formats
from tests.parity.checkpoints import write_checkpoint
from tests.parity.test_embeddings import write_model

WEIGHTS = {"bf16": 1000, "w8a16": 500, "w8a8": 500, "w4a16": 250, "w4a8": 250}
KV = {"bf16": 2, "int8": 1}
BF16 = Formats(dtype="bf16", kv_dtype="bf16", reason="bf16 matches the file's 16-bit weights")


def planner(available: int):
    """A planner with small numbers: one byte of KV cache per token in int8, two in bf16."""

    def plan(*, dtype: str, kv_dtype: str, max_model_len: int, max_num_seqs: int) -> MemoryPlan:
        room = available - WEIGHTS[dtype]
        kv_bytes = min(max_model_len * max_num_seqs * KV[kv_dtype], room)
        if kv_bytes < max_model_len * KV[kv_dtype]:
            raise InsufficientMemory("too little")
        return MemoryPlan(
            weights_bytes=WEIGHTS[dtype],
            resident_weights_bytes=WEIGHTS[dtype],
            mapping="none",
            workspace_bytes=0,
            adapter_bytes=0,
            kv_bytes_per_token=KV[kv_dtype],
            block_bytes=KV[kv_dtype],
            num_blocks=kv_bytes // KV[kv_dtype],
            kv_cache_bytes=kv_bytes,
            total_bytes=WEIGHTS[dtype] + kv_bytes,
            reserve_bytes=0,
            available_bytes=available,
        )

    return plan


def advice_for(available: int, *, auto: tuple[str, str] = ("bf16", "bf16"), context: int = 8192) -> Advice | None:
    plan = planner(available)
    fits = fit_formats(plan, max_model_len=context, max_num_seqs=2, available_bytes=available)
    return advise(plan, fits, auto=auto, max_model_len=context, max_num_seqs=2)


def test_a_sequence_takes_its_state_and_its_tokens() -> None:
    fit = FormatFit(dtype="w8a8", kv_dtype="int8", plan=None, room_tokens=9_000, state_tokens=1_000)
    assert [fit.sequences_of(length) for length in (9_000, 4_000, 1_000)] == [1, 2, 5]


@given(st.integers(300, 100_000), st.integers(32, 8192))
def test_the_kv_cache_may_use_all_memory_besides_the_weights(available: int, context: int) -> None:
    fits = fit_formats(planner(available), max_model_len=context, max_num_seqs=2, available_bytes=available)
    assert [(fit.dtype, fit.kv_dtype) for fit in fits] == list(FORMATS)
    for fit in fits:
        room = (available - WEIGHTS[fit.dtype]) // KV[fit.kv_dtype]
        if fit.plan is None:
            assert room < context
            assert fit.refusal
        else:
            assert fit.room_tokens == room
            assert fit.sequences_of(context) == room // context


def test_the_default_format_is_recommended_if_it_fits() -> None:
    assert advice_for(100_000, auto=("w4a8", "int8")) == Advice(dtype="w4a8", kv_dtype="int8", max_model_len=8192)


def test_the_best_format_that_fits_is_recommended_if_the_default_does_not() -> None:
    assert advice_for(8192 + 600) == Advice(dtype="w8a8", kv_dtype="int8", max_model_len=8192)


def test_weights_on_disk_are_recommended_only_if_no_format_fits_into_memory() -> None:
    plan = planner(100_000)
    fits = fit_formats(plan, max_model_len=8192, max_num_seqs=2, available_bytes=100_000)
    on_disk = [replace(fit, plan=replace(fit.plan, mapping="required")) for fit in fits if fit.plan is not None]
    for mixed, dtype in ((on_disk[:2] + fits[2:], fits[2].dtype), (on_disk, "bf16")):
        advice = advise(plan, mixed, auto=("bf16", "bf16"), max_model_len=8192, max_num_seqs=2)
        assert advice is not None
        assert advice.dtype == dtype


def test_the_longest_context_that_fits_is_recommended_if_none_does() -> None:
    assert advice_for(250 + 2100) == Advice(dtype="w4a8", kv_dtype="int8", max_model_len=2048)


def test_nothing_is_recommended_if_nothing_fits() -> None:
    assert advice_for(300) is None
    assert "does not fit here in any format" in advice_text("m", None, BF16, 8192)


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        (Advice(dtype="bf16", kv_dtype="bf16", max_model_len=8192), "headrace serve my/model"),
        (
            Advice(dtype="w8a8", kv_dtype="int8", max_model_len=8192),
            "headrace serve my/model --dtype w8a8 --kv-dtype int8",
        ),
        (
            Advice(dtype="w4a8", kv_dtype="int8", max_model_len=2048),
            "headrace serve my/model --dtype w4a8 --kv-dtype int8 --max-model-len 2048",
        ),
    ],
)
def test_the_advice_is_a_command_to_copy(advice: Advice, command: str) -> None:
    assert advice_text("my/model", advice, BF16, 8192).splitlines()[-1].strip() == command


@pytest.mark.model
def test_the_memory_of_a_real_model(headrace, smollm2_path) -> None:
    value = json.loads(headrace("fit", smollm2_path, "--memory", "4GiB", "--json").stdout)
    assert value["family"] == "llama"
    assert value["advice"] == {"dtype": "w4a16", "kv_dtype": "bf16", "max_model_len": 8192}
    assert "under 1 B" in value["default"]["reason"]
    weights = {row["dtype"]: row["plan"]["weights_bytes"] for row in value["formats"]}
    assert weights["w4a8"] == weights["w4a16"] < weights["w8a8"] == weights["w8a16"] < weights["bf16"]
    assert weights["bf16"] == pytest.approx(2 * value["num_parameters"], rel=0.01)


@pytest.mark.model
def test_a_real_model_in_too_little_memory_is_shown_as_not_fitting(headrace, smollm2_path) -> None:
    result = headrace("fit", smollm2_path, "--memory", "64MiB")
    assert result.exit_code == 0
    assert "does not fit" in result.stdout


def test_a_missing_model_is_reported_in_one_sentence(headrace) -> None:
    result = headrace("fit", "nope")
    assert result.exit_code == 2
    assert "nope" in result.stderr


@pytest.mark.parametrize("size", ["lots", "16"])
def test_an_invalid_memory_size_is_refused(headrace, smollm2_path, size: str) -> None:
    result = headrace("fit", smollm2_path, "--memory", size)
    assert result.exit_code == 2
    assert "16GiB" in result.stderr


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtral")
    write_checkpoint("mixtral", folder)
    return folder


def values_of(headrace, *args) -> dict:
    result = headrace("fit", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_token_reads_the_experts_that_it_chooses(headrace, mixtral) -> None:
    value = values_of(headrace, mixtral, "--memory", "1GiB", "--bandwidth", "1GB")
    spec = load_model(str(mixtral)).spec
    idle = spec.num_layers * 4 * 3 * spec.hidden_size * spec.moe.expert_size
    assert value["num_active_parameters"] == value["num_parameters"] - idle
    row = value["formats"][0]
    assert row["weight_bytes_per_token"] < row["plan"]["weights_bytes"] - 2 * idle
    assert row["kv_bytes_per_token_at_max_model_len"] == value["max_model_len"] * row["plan"]["kv_bytes_per_token"]
    assert row["tokens_per_s"] == pytest.approx(1e9 / row["weight_bytes_per_token"], rel=1e-3)
    assert row["tokens_per_s_at_max_model_len"] < row["tokens_per_s"]
    assert "2 of 6 experts a token" in headrace("fit", mixtral, "--bandwidth", "1GB").stdout


def test_an_encoder_has_no_speed_of_decoding(headrace, tmp_path) -> None:
    write_model("bert", tmp_path)
    shown = headrace("fit", tmp_path, "--bandwidth", "1GB").stdout
    assert "as served" in shown
    assert "tokens/s" not in shown


def test_layers_with_a_window_read_only_that_of_a_full_context(headrace, tmp_path) -> None:
    write_checkpoint("gemma 3", tmp_path)
    value = values_of(headrace, tmp_path, "--bandwidth", "1GB", "--rope", '{"full_attention": {"factor": 16.0}}')
    assert value["rope"].startswith("full_attention: linear, theta 10000, factor 16, ")
    row = value["formats"][0]
    full = value["max_model_len"] * row["plan"]["kv_bytes_per_token"]
    assert row["kv_bytes_per_token_at_max_model_len"] == pytest.approx(
        full / 3 * (1 + 2 * 17 / value["max_model_len"]), rel=1e-3
    )


def test_a_model_that_does_not_fit_is_refused_in_the_words_of_the_server(headrace, mixtral) -> None:
    result = headrace("fit", mixtral, "--memory", "1MiB", "--bandwidth", "1GB")
    assert "would refuse: Weights" in result.stdout
    assert "do not fit into the 1 MiB that are available. Lower max_model_len" in result.stdout


def test_an_unknown_network_is_refused_in_the_words_of_the_server(headrace, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedModel) as refused:
        load_model(str(tmp_path))
    fit = headrace("fit", tmp_path)
    assert fit.exit_code == 2
    assert "needs a recurrent state" in fit.stderr
    assert str(refused.value) in fit.stderr


def test_the_advice_names_the_rope_that_was_asked_for(headrace, mixtral) -> None:
    rope = '{"rope_type": "linear", "factor": 4}'
    result = headrace("fit", mixtral, "--rope", rope, "--bandwidth", "1GB")
    assert f"headrace serve {mixtral} --rope '{rope}'" in result.stdout


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (None, 16),
        ({"quant_method": "awq", "bits": 4}, 4),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 4),
    ],
)
def test_the_bits_of_a_model_of_the_hub_are_those_of_its_config(quantization, bits) -> None:
    assert promised_bits(Fields({"quantization_config": quantization}, "config.json")) == bits


_W4A16 = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}
_W8A8 = {"config_groups": {"g": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}}}
_FP8 = {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quantization_config": {"quant_method": "compressed-tensors", **_W4A16}}, "compressed-tensors W4A16"),
        ({"quantization_config": {"quant_method": "compressed-tensors", **_W8A8}}, "compressed-tensors W8A8"),
        ({"quantization_config": {"quant_method": "compressed-tensors", **_FP8}}, "compressed-tensors FP8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "GPTQ W4A16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "FP8"),
        (
            {
                "quantization_config": {
                    "quant_method": "bitsandbytes",
                    "load_in_4bit": True,
                    "bnb_4bit_quant_type": "nf4",
                }
            },
            "bitsandbytes NF4",
        ),
        ({"torch_dtype": "float16"}, "F16"),
        ({}, "BF16"),
    ],
)
def test_the_format_of_a_model_of_the_hub_has_its_usual_name(config: dict[str, object], name: str) -> None:
    assert promised_format(Fields(config, "config.json")) == name


def test_the_stored_format_of_a_file_is_named_beside_the_format_it_runs_in(headrace, smollm2_path, tmp_path) -> None:
    shown = headrace("fit", smollm2_path, "--memory", "64GiB", "--bandwidth", "1GB").stdout
    assert "stored: GGUF, Q4_1; runs by default as w4a16, KV cache bf16\n" in shown
    write_checkpoint("llama", tmp_path / "m")
    value = json.loads(headrace("fit", tmp_path / "m", "--json", "--bandwidth", "1GB").stdout)
    assert value["stored_format"] == "safetensors, F32"


@pytest.mark.parametrize("memory", ["64GiB", "64MiB"])
def test_the_tables_fit_into_80_columns(headrace, smollm2_path, memory: str) -> None:
    shown = headrace("fit", smollm2_path, "--memory", memory, "--bandwidth", "1GB").stdout
    tables = [line for line in shown.splitlines() if line.lstrip().startswith(("dtype ", "bf16 ", "w8a", "w4a"))]
    assert len(tables) == 14
    assert max(map(len, tables)) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(tables)
