"""The configuration of a chosen backend: its device, its split and the arguments that win."""

import json
from dataclasses import replace

import pytest

from headrace.core.errors import SettingsError, UnsupportedModel
from headrace.core.installing import pip_install
from headrace.inference.backends.choice import BackendChoice, HostFacts
from headrace.inference.backends.facts import host_facts
from headrace.inference.backends.loading import adjustments, chosen_config, load_backend, num_devices
from headrace.inference.engine.config import ModelSource
from headrace.serving.server.engine_config import engine_config
from headrace.serving.settings.server_settings import ServerSettings

CONFIG = engine_config(ServerSettings(model="m", dtype="w8a8", kv_dtype="int8", rolling_batch="trtllm"))
ON_CPU = BackendChoice(name="vllm", device="cpu", reason="as requested")
ON_GPU = replace(ON_CPU, device="cuda")
NATIVE = BackendChoice(name="native", device="cpu", reason="the first choice on a CPU")
TWO_GPUS = HostFacts(num_gpus=2)


def test_the_configuration_says_what_was_chosen_and_why():
    config = chosen_config(CONFIG, NATIVE, HostFacts())

    assert (config.backend, config.device, config.tensor_parallel_size) == ("native", "cpu", 1)
    assert config.backend_reason == "the first choice on a CPU"


@pytest.mark.parametrize(
    ("choice", "args", "formats"),
    [
        (ON_CPU, {"quantization": "awq"}, ("auto", "int8")),
        (ON_CPU, {"dtype": "half"}, ("auto", "int8")),
        (ON_CPU, {"kv_cache_dtype": "fp8"}, ("w8a8", "auto")),
        (ON_CPU, {"max_cpu_loras": 2}, ("w8a8", "int8")),
        (NATIVE, {"quantization": "awq", "kv_cache_dtype": "fp8"}, ("w8a8", "int8")),
    ],
)
def test_vllms_own_arguments_win_over_our_formats_if_vllm_serves(choice, args, formats):
    config = chosen_config(replace(CONFIG, vllm_args=args), choice, HostFacts())

    assert (config.dtype, config.kv_dtype) == formats


@pytest.mark.parametrize(
    ("requested", "choice", "wanted"),
    [(None, ON_GPU, 1), (0, ON_GPU, 2), (2, ON_GPU, 2), (0, ON_CPU, 1), (2, ON_CPU, 2), (0, NATIVE, 1), (1, NATIVE, 1)],
)
def test_the_network_is_split_over_as_many_devices_as_asked(requested, choice, wanted):
    assert num_devices(requested, choice, TWO_GPUS) == wanted


def test_max_leaves_gpus_for_the_stages_of_a_pipeline_and_takes_one_for_a_backend_that_does_not_split():
    four = HostFacts(num_gpus=4)
    config = replace(CONFIG, tensor_parallel_size=0, vllm_args={"pipeline_parallel_size": 2})
    sizes = {
        name: chosen_config(config, replace(ON_GPU, name=name), four).tensor_parallel_size
        for name in ("vllm", "torch", "transformers")
    }
    assert sizes == {"vllm": 2, "torch": 4, "transformers": 1}

    assert set(adjustments(config, replace(ON_GPU, name="transformers"), four)) == {"tensor_parallel_size"}
    assert not adjustments(config, ON_GPU, four)


@pytest.mark.parametrize(
    ("backend", "host", "dtype"),
    [("auto", TWO_GPUS, "bf16"), ("auto", HostFacts(), "fp16"), ("native", TWO_GPUS, "fp16")],
)
def test_fp16_for_a_gpu_runs_as_bf16_if_auto_ends_at_the_native_backend(backend, host, dtype):
    config = replace(CONFIG, backend=backend, dtype="fp16")

    assert chosen_config(config, NATIVE, host).dtype == dtype
    assert ("dtype" in adjustments(config, NATIVE, host)) == (dtype == "bf16")
    assert chosen_config(config, replace(ON_GPU, name="torch"), TWO_GPUS).dtype == "fp16"


@pytest.mark.parametrize(
    ("requested", "choice", "sentence"),
    [
        (3, ON_GPU, "tensor_parallel_size is 3; expected at most 2, the GPUs that this process sees."),
        (2, NATIVE, "tensor_parallel_size is 2; expected 1, as the native backend does not split a network."),
    ],
)
def test_a_split_that_cannot_be_is_refused(requested, choice, sentence):
    with pytest.raises(SettingsError) as refused:
        num_devices(requested, choice, TWO_GPUS)

    assert refused.value.message.startswith(sentence)


def test_the_choice_is_reported_before_the_model_is_loaded(smollm2_path):
    class Stop(Exception):
        pass

    def report(choice):
        raise Stop(choice.name, choice.notices)

    with pytest.raises(Stop) as stopped:
        load_backend(ModelSource(model=str(smollm2_path)), CONFIG, on_choice=report)

    assert stopped.value.args == (
        "native",
        ("rolling_batch trtllm asks for TensorRT-LLM, which does not run here: native serves.",),
    )


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            f"needs gptqmodel for weights quantized with awq. Install it: {pip_install('gptqmodel')}.",
        ),
        (
            {"quantization_config": {"quant_method": "eetq"}},
            "runs weights quantized with eetq on GPUs only.",
        ),
        (
            {"model_type": "nonesuch"},
            "which has no model class for model_type 'nonesuch' (version ",
        ),
        (
            {"model_type": "nonesuch", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}},
            "and the code of the checkpoint is not trusted. Read it, then set trust_remote_code to run it here.",
        ),
    ],
)
def test_what_transformers_lacks_is_refused_before_anything_is_loaded(tmp_path, config, sentence):
    plain = {"model_type": "bloom", "architectures": ["BloomForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(plain | config))
    with pytest.raises((SettingsError, UnsupportedModel)) as refused:
        load_backend(ModelSource(model=str(tmp_path)), replace(CONFIG, backend="transformers", rolling_batch="auto"))
    assert sentence in refused.value.message


def test_the_native_backend_is_always_installed():
    assert "native" in host_facts({}).installed
