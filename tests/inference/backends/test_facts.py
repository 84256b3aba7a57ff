"""The facts about a model that the choice of a backend depends on, read from its config.json."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedModel
from headrace.inference.backends.choice import ModelFacts, Request, choose_backend
from headrace.inference.backends.facts import host_facts, library_facts, model_facts
from headrace.inference.backends.libraries import TransformersTables, VllmTables
from headrace.inference.backends.quantization import NEEDS, Quantization, quantization_of
from headrace.inference.models.fields import Fields

VLLM = VllmTables(architectures=frozenset({"LlamaForCausalLM"}))


def tables(folder: Path) -> TransformersTables:
    """Return tables of two networks: vLLM can run `plain` with its own attention, and `gated-net` keeps a state."""
    for module, code in {"plain": "ALL_ATTENTION_FUNCTIONS.get_interface(", "gated": "_is_stateful = True"}.items():
        path = folder / "models" / module / f"modeling_{module}.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
    return TransformersTables(
        folder=folder,
        classes={"plain": "PlainForCausalLM", "gated-net": "GatedForCausalLM"},
        modules={"gated-net": "gated"},
        quantizers=frozenset({"awq", "bitsandbytes_4bit"}),
    )


def facts(folder: Path, *, vllm: VllmTables | None = VLLM, **config: object) -> ModelFacts:
    return library_facts(Fields(config, "config.json"), tables(folder), vllm)


def test_networks_are_looked_up_by_type_and_architecture(tmp_path: Path) -> None:
    known = facts(tmp_path / "1", model_type="plain", architectures=["PlainForCausalLM"])
    assert (known.in_transformers, known.in_vllm, known.keeps_state) == (True, True, False)
    state = facts(tmp_path / "2", model_type="gated-net", architectures=["GatedForCausalLM"])
    assert (state.in_transformers, state.in_vllm, state.keeps_state) == (True, False, True)
    own = facts(tmp_path / "3", model_type="new", architectures=["NewForCausalLM", "LlamaForCausalLM"])
    assert (own.in_transformers, own.in_vllm) == (False, True)


def test_what_is_unknown_is_left_to_loading() -> None:
    found = library_facts(Fields({"model_type": "new"}, "config.json"), None, None)
    assert (found.in_transformers, found.in_vllm, found.keeps_state) == (True, True, False)


@pytest.mark.parametrize(
    ("auto_map", "has_own_code"),
    [({"AutoModelForCausalLM": "modeling.New"}, True), ({"AutoTokenizer": "t.T"}, False), ("odd", False)],
)
def test_code_of_the_checkpoint_is_a_network_only_if_auto_map_says_so(
    auto_map: object, has_own_code: bool, tmp_path: Path
) -> None:
    assert facts(tmp_path, model_type="new", auto_map=auto_map).has_own_code == has_own_code


@given(st.sampled_from([*NEEDS, "own", ""]), st.frozensets(st.sampled_from(sorted(NEEDS))), st.booleans())
def test_missing_packages_are_those_that_cannot_be_imported(
    method: str, readers: frozenset[str], are_there: bool
) -> None:
    found = quantization_of(method, readers, lambda _: are_there)
    assert found.method == (method or "bitsandbytes")
    assert not (are_there and found.missing)
    assert found.is_known == (not readers or found.method in readers)


def test_the_quantization_of_a_checkpoint_names_its_packages(tmp_path: Path) -> None:
    found = facts(tmp_path, model_type="plain", quantization_config={"quant_method": "awq", "bits": 4})
    assert found.quantization == Quantization(method="awq", missing=("gptqmodel",))


def test_a_model_that_nothing_here_runs_is_refused_by_one_error_that_names_each_backend(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch", "architectures": ["NonesuchForCausalLM"]}')
    host = host_facts({})
    with pytest.raises(UnsupportedModel) as refused:
        choose_backend(Request(), model_facts(tmp_path), host)
    text = refused.value.message
    version = host.versions["transformers"]
    assert "config.json: model_type is 'nonesuch'; expected one of" in text
    assert f"transformers has no model class for model_type 'nonesuch' (version {version})" in text
    assert "; vllm " in text
