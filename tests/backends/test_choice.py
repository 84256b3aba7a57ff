"""The choice of a backend: what is asked for, what runs the model here, and what is said about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.choice import HostFacts, ModelFacts, Request, choose_backend
from headrace.core.errors import HeadraceError, SettingsError, UnsupportedModel
from headrace.settings.engine_names import BACKENDS, ENGINES

ALL = frozenset(BACKENDS)
NATIVE_ONLY = frozenset({"native"})
LLAMA = ModelFacts(architecture="LlamaForCausalLM", model_type="llama")
REFUSAL = "model_type is 'bloom'; expected one of llama."
BLOOM = ModelFacts(
    architecture="BloomForCausalLM", model_type="bloom", native_error=REFUSAL, torch_error="torch: no alibi"
)
MAMBA = ModelFacts(architecture="MambaForCausalLM", model_type="mamba", native_error="no", torch_error="no")
T5 = ModelFacts(
    architecture="T5ForConditionalGeneration",
    model_type="t5",
    native_error="no",
    torch_error="no",
    is_encoder_decoder=True,
)
GGUF = ModelFacts(is_gguf=True)
BERT = ModelFacts(architecture="BertModel", model_type="bert", is_pooled=True)


def choose(model=LLAMA, *, installed=ALL, num_gpus=0, **request):
    return choose_backend(Request(**request), model, HostFacts(installed=frozenset(installed), num_gpus=num_gpus))


@pytest.mark.parametrize(
    ("model", "installed", "num_gpus", "wanted"),
    [
        (LLAMA, ALL, 0, ("native", "cpu")),
        (LLAMA, ALL, 1, ("vllm", "cuda")),
        (LLAMA, {"native", "torch", "transformers"}, 1, ("torch", "cuda")),
        (LLAMA, {"native", "transformers"}, 2, ("transformers", "cuda")),
        (LLAMA, NATIVE_ONLY, 1, ("native", "cpu")),
        (BLOOM, ALL, 0, ("transformers", "cpu")),
        (BLOOM, {"native", "vllm"}, 0, ("vllm", "cpu")),
        (BLOOM, {"native", "torch", "transformers"}, 1, ("transformers", "cuda")),
        (MAMBA, ALL, 0, ("vllm", "cpu")),
        (T5, ALL, 1, ("transformers", "cuda")),
        (GGUF, ALL, 1, ("torch", "cuda")),
        (GGUF, {"native", "vllm"}, 1, ("native", "cpu")),
        (BERT, ALL, 1, ("torch", "cuda")),
        (BERT, {"native", "vllm"}, 1, ("native", "cpu")),
    ],
)
def test_auto_takes_the_best_backend_that_runs_the_model_here(model, installed, num_gpus, wanted):
    choice = choose(model, installed=installed, num_gpus=num_gpus)

    assert (choice.name, choice.device) == wanted
    assert choice.notices == ()


@pytest.mark.parametrize(
    ("model", "installed", "num_gpus", "reason"),
    [
        (LLAMA, ALL, 0, "the first choice on a CPU"),
        (LLAMA, ALL, 1, "the first choice on a GPU"),
        (BLOOM, ALL, 0, "native does not run BloomForCausalLM"),
        (LLAMA, {"native", "torch"}, 1, "vllm is not installed"),
        (T5, ALL, 1, "vllm does not run T5ForConditionalGeneration, an encoder-decoder; torch does not run T5"),
    ],
)
def test_the_reason_names_what_is_wrong_with_the_backends_before_it(model, installed, num_gpus, reason):
    assert choose(model, installed=installed, num_gpus=num_gpus).reason.startswith(reason)


@pytest.mark.parametrize(("device", "wanted"), [("cpu", ("native", "cpu")), ("cuda", ("vllm", "cuda"))])
def test_a_device_that_is_named_is_used(device, wanted):
    choice = choose(num_gpus=2, device=device)

    assert (choice.name, choice.device) == wanted


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(SettingsError, match=r"^device is cuda, and this process sees no NVIDIA GPU; expected one\."):
        choose(device="cuda")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_is_named_serves_if_it_can(backend):
    choice = choose(backend=backend, engine="trtllm", is_strict=True)

    assert (choice.name, choice.reason, choice.notices) == (backend, "as requested", ())


@pytest.mark.parametrize(
    ("model", "installed", "request_fields", "kind", "sentence"),
    [
        (
            LLAMA,
            NATIVE_ONLY,
            {"backend": "vllm"},
            SettingsError,
            "backend is vllm, which is not installed. Install it: pip install 'headrace[vllm]'.",
        ),
        (
            LLAMA,
            NATIVE_ONLY,
            {"backend": "transformers"},
            SettingsError,
            "backend is transformers, which is not installed. Install it: pip install 'headrace[torch]'.",
        ),
        (BLOOM, ALL, {"backend": "native"}, UnsupportedModel, REFUSAL),
        (BLOOM, ALL, {"backend": "torch"}, UnsupportedModel, "torch: no alibi"),
        (
            T5,
            ALL,
            {"backend": "vllm"},
            UnsupportedModel,
            "backend is vllm, which does not run T5ForConditionalGeneration, an encoder-decoder. Use",
        ),
        (GGUF, ALL, {"backend": "vllm"}, UnsupportedModel, "backend is vllm, which reads no GGUF files."),
        (BERT, ALL, {"backend": "transformers"}, UnsupportedModel, "serves no embeddings or scores."),
    ],
)
def test_a_backend_that_is_named_and_cannot_serve_is_refused(model, installed, request_fields, kind, sentence):
    with pytest.raises(HeadraceError) as refused:
        choose(model, installed=installed, **request_fields)

    assert type(refused.value) is kind
    assert sentence in refused.value.message


def test_a_cpu_backend_is_not_taken_for_a_gpu_that_is_named():
    with pytest.raises(UnsupportedModel, match="runs on CPUs only"):
        choose(installed=NATIVE_ONLY, device="cuda", num_gpus=1)


def test_a_model_that_no_installed_backend_runs_is_refused_with_both_extras():
    with pytest.raises(UnsupportedModel) as refused:
        choose(BLOOM, installed=NATIVE_ONLY)

    assert refused.value.message == (
        f"{REFUSAL} Other backends: transformers is not installed (pip install 'headrace[torch]'); "
        "vllm is not installed (pip install 'headrace[vllm]')."
    )


@pytest.mark.parametrize(
    ("engine", "installed", "name", "notice"),
    [
        ("auto", ALL, "native", ""),
        ("vllm", ALL, "vllm", ""),
        ("lmi-dist", ALL, "vllm", ""),
        ("transformers", ALL, "transformers", ""),
        ("scheduler", ALL, "native", ""),
        ("disable", ALL, "native", ""),
        (
            "vllm",
            NATIVE_ONLY,
            "native",
            "rolling_batch vllm asks for vllm, which is not installed (pip install 'headrace[vllm]'): native serves.",
        ),
        (
            "lmi-dist",
            NATIVE_ONLY,
            "native",
            "rolling_batch lmi-dist asks for vllm, which is not installed (pip install 'headrace[vllm]'): native",
        ),
        (
            "trtllm",
            ALL,
            "native",
            "rolling_batch trtllm asks for TensorRT-LLM, which does not run here: native serves.",
        ),
        ("deepspeed", ALL, "native", "rolling_batch deepspeed asks for DeepSpeed, which does not run here: native"),
        ("tnx", ALL, "native", "rolling_batch tnx asks for Transformers NeuronX, which does not run here: native"),
    ],
)
def test_an_engine_of_another_server_is_preferred_and_its_replacement_is_named(engine, installed, name, notice):
    choice = choose(engine=engine, installed=installed)

    assert choice.name == name
    assert "".join(choice.notices).startswith(notice)
    assert bool(choice.notices) == bool(notice)


@pytest.mark.parametrize("engine", ["trtllm", "deepspeed", "tnx", "vllm", "lmi-dist"])
def test_strict_refuses_an_engine_that_does_not_run_here(engine):
    with pytest.raises(SettingsError, match=f"^rolling_batch is {engine}, and strict_backend is on: "):
        choose(engine=engine, installed=NATIVE_ONLY, is_strict=True)


@pytest.mark.parametrize("engine", ["auto", "vllm", "lmi-dist", "scheduler", "disable"])
def test_strict_accepts_an_engine_that_runs_here(engine):
    assert choose(engine=engine, is_strict=True).notices == ()


@given(
    request=st.builds(
        Request,
        backend=st.sampled_from(("auto", *BACKENDS)),
        engine=st.sampled_from(tuple(ENGINES)),
        device=st.sampled_from(("auto", "cpu", "cuda")),
        is_strict=st.booleans(),
    ),
    model=st.sampled_from((LLAMA, BLOOM, MAMBA, T5, GGUF, BERT)),
    installed=st.frozensets(st.sampled_from(BACKENDS[1:])),
    num_gpus=st.integers(0, 3),
)
def test_whatever_is_asked_an_installed_backend_serves_or_one_line_says_why_not(request, model, installed, num_gpus):
    host = HostFacts(installed=installed | NATIVE_ONLY, num_gpus=num_gpus)
    try:
        choice = choose_backend(request, model, host)
    except (SettingsError, UnsupportedModel) as error:
        lines = error.message.splitlines()
    else:
        check(choice, request, host)
        lines = choice.reason.splitlines()
    assert len(lines) == 1


def check(choice, request, host):
    assert choice.name in host.installed
    assert request.backend in ("auto", choice.name)
    assert request.device in ("auto", choice.device)
    assert choice.device == "cpu" or host.num_gpus
    assert all(choice.name in notice for notice in choice.notices)
