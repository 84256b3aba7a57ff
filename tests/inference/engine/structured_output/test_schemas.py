"""Schemas like those of real projects on the real model: every answer is valid, closed and complete."""

import asyncio
import json
from pathlib import Path

import pytest

from headrace.core.generation import FinishReason, Grammar
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, request, running
from tests.schemas import RECURSIVE, SCHEMAS, problem

pytestmark = pytest.mark.model

NUM_SEEDS = 2
"""`python -m benchmarks.grammar.validity smollm2` takes 40."""


async def test_forty_schemas_are_answered_validly_greedily_and_by_seed(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    settings = ServerSettings(
        model=str(smollm2_path), cache_dir=folder, dtype="w8a8", max_model_len=512, max_num_seqs=32
    )
    cases = [(name, schema, seed) for seed in (None, *range(NUM_SEEDS)) for name, schema in SCHEMAS.items()]
    cases += [(name, schema, 0) for name, schema in RECURSIVE.items()]
    async with running(load_engine(settings)) as engine:
        answers = await asyncio.gather(
            *(
                ask(
                    engine,
                    request(
                        f"One short example of a {name}, as JSON: ",
                        temperature=0.0 if seed is None else 1.0,
                        seed=seed,
                        max_new_tokens=400 if schema is SCHEMAS.get(name) else 60,
                        grammar=Grammar("json_schema", json.dumps(schema)),
                    ),
                )
                for name, schema, seed in cases
            )
        )
    assert len(SCHEMAS) == 40
    for (name, schema, seed), answer in zip(cases, answers, strict=True):
        if schema is SCHEMAS.get(name):
            assert answer.finish.reason is FinishReason.EOS, (name, seed, answer.text)
        if answer.finish.reason is FinishReason.EOS:
            assert problem(schema, answer.text) is None, (name, seed, answer.text)
