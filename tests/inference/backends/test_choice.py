"""The choice of a backend: what is asked for, what runs the model here, and what is said about it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.engine_names import BACKENDS, ENGINES
from headrace.core.errors import HeadraceError, SettingsError, UnsupportedModel
from headrace.core.installing import pip_install
from headrace.inference.backends.choice import HostFacts, ModelFacts, Request, choose_backend
from headrace.inference.backends.quantization import Quantization

ALL = frozenset(BACKENDS)
NATIVE_ONLY = frozenset({"native"})
LLAMA = ModelFacts(architecture="LlamaForCausalLM", model_type="llama")
VLLM = pip_install("headrace[vllm]")
REFUSAL = "model_type is 'bloom'; expected one of llama."
BLOOM = ModelFacts(architecture="BloomForCausalLM", model_type="bloom", own_error=REFUSAL)
MAMBA = ModelFacts(architecture="MambaForCausalLM", model_type="mamba", own_error="no", keeps_state=True)
MPT = replace(BLOOM, architecture="MptForCausalLM", model_type="mpt", in_vllm=False)
NEW = replace(BLOOM, architecture="NewForCausalLM", model_type="new", in_vllm=False, in_transformers=False)
NEW_WITH_CODE = replace(NEW, has_own_code=True)
QUANTIZED = replace(BLOOM, quantization=Quantization(method="awq", missing=("gptqmodel",)))
ON_GPUS_ONLY = replace(BLOOM, quantization=Quantization(method="eetq", needs_gpu=True))
UNREAD = replace(BLOOM, quantization=Quantization(method="own", is_known=False))
VERSIONS = {"transformers": "5.23.0", "vllm": "0.32.0"}
T5 = ModelFacts(
    architecture="T5ForConditionalGeneration",
    model_type="t5",
    own_error="no",
    is_encoder_decoder=True,
)
GGUF = ModelFacts(is_gguf=True)
BERT = ModelFacts(architecture="BertModel", model_type="bert", is_pooled=True)


def choose(model=LLAMA, *, installed=ALL, num_gpus=0, **request):
    host = HostFacts(installed=frozenset(installed), num_gpus=num_gpus, versions=VERSIONS)
    return choose_backend(Request(**request), model, host)


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
        (MPT, ALL, 1, ("transformers", "cuda")),
        (replace(NEW, in_vllm=True), ALL, 0, ("vllm", "cpu")),
        (QUANTIZED, ALL, 0, ("vllm", "cpu")),
        (ON_GPUS_ONLY, ALL, 0, ("vllm", "cpu")),
        (ON_GPUS_ONLY, {"native", "torch", "transformers"}, 1, ("transformers", "cuda")),
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
        (MPT, ALL, 1, "vllm has no network for MptForCausalLM (version 0.32.0); torch does not run MptForCausalLM"),
        (
            replace(NEW, in_vllm=True),
            ALL,
            0,
            "native does not run NewForCausalLM; transformers has no model class for model_type 'new' (version 5.23.0)",
        ),
        (QUANTIZED, ALL, 0, "native does not run BloomForCausalLM; transformers needs gptqmodel for weights quantized"),
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
            f"backend is vllm, which is not installed. Install it: {VLLM}.",
        ),
        (
            LLAMA,
            NATIVE_ONLY,
            {"backend": "transformers"},
            SettingsError,
            f"backend is transformers, which is not installed. Install it: {pip_install('headrace[torch]')}.",
        ),
        (BLOOM, ALL, {"backend": "native"}, UnsupportedModel, REFUSAL),
        (BLOOM, ALL, {"backend": "torch"}, UnsupportedModel, REFUSAL),
        (
            T5,
            ALL,
            {"backend": "vllm"},
            UnsupportedModel,
            "backend is vllm, which does not run T5ForConditionalGeneration, an encoder-decoder. Use",
        ),
        (
            NEW,
            ALL,
            {"backend": "transformers"},
            UnsupportedModel,
            "backend is transformers, which has no model class for model_type 'new' (version 5.23.0).",
        ),
        (
            NEW_WITH_CODE,
            ALL,
            {"backend": "transformers"},
            SettingsError,
            "(version 5.23.0), and the code of the checkpoint is not trusted. Read it, then set trust_remote_code",
        ),
        (
            QUANTIZED,
            ALL,
            {"backend": "transformers"},
            SettingsError,
            f"which needs gptqmodel for weights quantized with awq. Install it: {pip_install('gptqmodel')}.",
        ),
        (
            ON_GPUS_ONLY,
            ALL,
            {"backend": "transformers"},
            UnsupportedModel,
            "backend is transformers, which runs weights quantized with eetq on GPUs only.",
        ),
        (
            UNREAD,
            ALL,
            {"backend": "transformers"},
            UnsupportedModel,
            "which does not read weights quantized with own (version 5.23.0).",
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
        f"{REFUSAL} Other backends: transformers is not installed ({pip_install('headrace[torch]')}); "
        f"vllm is not installed ({VLLM})."
    )


def test_the_error_names_what_each_backend_says():
    with pytest.raises(UnsupportedModel) as refused:
        choose(NEW_WITH_CODE)

    advice = "the code of the checkpoint is not trusted (read it, then set trust_remote_code to run it here)"
    assert refused.value.message == (
        f"{REFUSAL} Other backends: "
        f"transformers has no model class for model_type 'new' (version 5.23.0), and {advice}; "
        f"vllm has no network for NewForCausalLM (version 0.32.0), and {advice}."
    )


@pytest.mark.parametrize("backend", ["auto", "transformers", "vllm"])
def test_the_code_of_a_checkpoint_serves_if_it_is_trusted(backend):
    wanted = "transformers" if backend == "auto" else backend
    assert choose(NEW_WITH_CODE, backend=backend, trust_remote_code=True).name == wanted
    with pytest.raises(UnsupportedModel):
        choose(NEW, backend=backend, trust_remote_code=True)


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
            f"rolling_batch vllm asks for vllm, which is not installed ({VLLM}): native serves.",
        ),
        (
            "lmi-dist",
            NATIVE_ONLY,
            "native",
            f"rolling_batch lmi-dist asks for vllm, which is not installed ({VLLM}): native",
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


MODELS = st.builds(
    ModelFacts,
    architecture=st.just("SomeForCausalLM"),
    model_type=st.just("some"),
    own_error=st.none() | st.just("no"),
    has_own_code=st.booleans(),
    in_transformers=st.booleans(),
    in_vllm=st.booleans(),
    keeps_state=st.booleans(),
    quantization=st.none()
    | st.builds(
        Quantization,
        method=st.just("awq"),
        missing=st.sampled_from(((), ("gptqmodel",), ("optimum", "gptqmodel"))),
        needs_gpu=st.booleans(),
        is_known=st.booleans(),
    ),
    is_encoder_decoder=st.booleans(),
    is_gguf=st.booleans(),
    is_pooled=st.booleans(),
)


@given(
    request=st.builds(
        Request,
        backend=st.sampled_from(("auto", *BACKENDS)),
        engine=st.sampled_from(tuple(ENGINES)),
        device=st.sampled_from(("auto", "cpu", "cuda")),
        is_strict=st.booleans(),
        trust_remote_code=st.booleans(),
    ),
    model=MODELS,
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
        check(choice, request, model, host)
        lines = choice.reason.splitlines()
    assert len(lines) == 1


def check(choice, request, model, host):
    assert choice.name not in ("native", "torch") or model.own_error is None
    may_run_code = model.has_own_code and request.trust_remote_code
    assert choice.name != "transformers" or model.in_transformers or may_run_code
    assert choice.name != "vllm" or model.in_vllm or may_run_code
    if choice.name == "transformers" and model.quantization is not None:
        assert model.quantization.is_known
        assert not model.quantization.missing
        assert choice.device == "cuda" or not model.quantization.needs_gpu
    assert choice.name in host.installed
    assert request.backend in ("auto", choice.name)
    assert request.device in ("auto", choice.device)
    assert choice.device == "cpu" or host.num_gpus
    assert all(choice.name in notice for notice in choice.notices)
