"""The tables of transformers and vLLM that are read from source are those that the packages have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.backends.libraries import package_version, read_tables, transformers_tables

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_the_classes_and_quantizers_are_those_of_transformers() -> None:
    from transformers import __version__
    from transformers.models.auto import modeling_auto
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    tables = transformers_tables()
    assert tables is not None
    assert package_version("transformers") == __version__
    assert tables.classes == {
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    assert tables.quantizers == AUTO_QUANTIZER_MAPPING.keys()


@pytest.mark.parametrize(
    ("model_type", "keeps_state", "runs_in_vllm"),
    [
        ("llama", False, True),
        ("mamba", True, False),
        ("qwen3_5_text", True, True),
        ("bloom", False, False),
        ("nonesuch", False, False),
    ],
)
def test_marks_of_a_network_are_found_in_its_code(model_type: str, keeps_state: bool, runs_in_vllm: bool) -> None:
    tables = transformers_tables()
    assert tables is not None
    assert (tables.keeps_state(model_type), tables.runs_in_vllm(model_type)) == (keeps_state, runs_in_vllm)


@given(st.dictionaries(NAMES, NAMES))
def test_tables_of_pairs_and_of_keys_are_read(table: dict[str, str]) -> None:
    source = f"A = OrderedDict({list(table.items())!r})\nB: dict = {{**A, {str(table)[1:-1]}}}\nC = [x for x in ()]\n"
    assert read_tables(source) == {"A": table, "B": dict.fromkeys(table, ""), "C": {}}


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert package_version("headrace-nonesuch") == "of an unknown version"
