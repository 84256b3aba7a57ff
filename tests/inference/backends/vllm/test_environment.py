"""The environment of vLLM's processes."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.backends.vllm.child import cpus_of_ranks, variables_set, vllm_variables


def variables(environ: dict[str, str], **changes) -> dict[str, str]:
    values = {
        "folder": Path("/tmp/vllm"),
        "log": "json info",
        "cache_dir": Path("/cache"),
        "cpus": [[0, 1], [2, 3]],
    }
    return vllm_variables(environ, **{**values, "is_batch_invariant": False, "step_timeout_s": 0.6, **changes})


def test_processes_are_spawned_post_nothing_and_load_our_plugin() -> None:
    made = variables({})
    expected = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "headrace",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "0,1|2,3",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "VLLM_RPC_BASE_PATH": "/tmp/vllm",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "2",
    }
    assert {name: made[name] for name in expected} == expected
    assert "VLLM_BATCH_INVARIANT" not in made
    assert variables({}, is_batch_invariant=True)["VLLM_BATCH_INVARIANT"] == "1"


def test_the_operators_own_variables_win_where_they_only_tune() -> None:
    own = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_PLUGINS": "bart", "VLLM_NO_USAGE_STATS": "0"}
    made = variables(own)
    assert (made["VLLM_CPU_OMP_THREADS_BIND"], made["VLLM_PLUGINS"]) == ("nobind", "headrace,bart")
    assert made["VLLM_NO_USAGE_STATS"] == "1"


def test_the_environment_is_what_it_was_after_the_block(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "before")
    before = dict(os.environ)
    with variables_set({"VLLM_PLUGINS": "headrace", "NEW_NAME": "1"}):
        assert os.environ["VLLM_PLUGINS"] == "headrace"
        os.environ["NAME_OF_VLLM"] = "libgomp.so"
    assert dict(os.environ) == before


@given(
    cpus=st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True),
    num_ranks=st.integers(1, 80),
    num_threads=st.none() | st.integers(1, 64),
)
def test_each_rank_has_cpus_of_this_process(cpus: list[int], num_ranks: int, num_threads: int | None) -> None:
    ranks = cpus_of_ranks(cpus, num_ranks=num_ranks, num_threads=num_threads)
    assert len(ranks) == num_ranks
    for rank in ranks:
        assert 1 <= len(rank) <= (num_threads or len(cpus))
        assert set(rank) <= set(cpus)
    if num_ranks <= len(cpus):
        assert len({cpu for rank in ranks for cpu in rank}) == sum(map(len, ranks))
