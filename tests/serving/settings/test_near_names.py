"""Suggestions for misspelt or shortened names."""

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.settings.container_tables import OPTIONS
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.values import near_name

from .setting_examples import MODEL

NAMES = sorted(name for name in OPTIONS if len(name) >= 8)


def closeness(near: str, misspelt: str) -> float:
    return SequenceMatcher(None, near.replace("_", ""), misspelt.replace("_", "")).ratio()


@given(st.sampled_from(NAMES), st.data())
def test_one_wrong_letter_finds_a_name_that_is_one_letter_away(name: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:position] + data.draw(st.sampled_from(["", "x", name[position] * 2])) + name[position + 1 :]
    near = near_name(misspelt, OPTIONS)
    assert near is not None
    assert near == name or near.startswith(f"{misspelt}_") or closeness(near, misspelt) >= closeness(name, misspelt)


@given(st.sampled_from([name for name in NAMES if len(name.rpartition("_")[0]) >= 6]))
def test_a_name_without_its_last_word_finds_the_full_name(name: str) -> None:
    shortened = name.rpartition("_")[0]
    near = near_name(shortened, OPTIONS)
    assert near is not None
    assert near == shortened or near.startswith(f"{shortened}_")


@pytest.mark.parametrize("word", ["", "max", "xyzzy", "banana_split"])
def test_a_name_without_a_similar_one_gets_no_suggestion(word: str) -> None:
    assert near_name(word, OPTIONS) is None


def test_case_and_separators_are_ignored() -> None:
    assert near_name("maxRollingBatchSize", OPTIONS) == "max_rolling_batch_size"
    assert near_name("MODEL-ID", OPTIONS) == "model_id"


@pytest.mark.parametrize(
    ("env", "properties", "near"),
    [
        ({"OPTION_DTYP": "fp16"}, {}, "OPTION_DTYPE"),
        ({}, {"option.max_rolling_batch_sise": "4"}, "option.max_rolling_batch_size"),
        ({"SM_VLLM_MAX_MODEL_LENGTH": "4"}, {}, "SM_VLLM_MAX_MODEL_LEN"),
        ({"SERVING_JOB_QUEUE_SIZ": "4"}, {}, "SERVING_JOB_QUEUE_SIZE"),
        ({}, {"option.max_rolling_batch": "32"}, "option.max_rolling_batch_size"),
        ({"OPTION_MAX_ROLLING_BATCH": "32"}, {}, "OPTION_MAX_ROLLING_BATCH_SIZE"),
        ({}, {"option.max_rolling_batch_prefill": "32"}, "option.max_rolling_batch_prefill_tokens"),
        ({}, {"option.rolling_batch_size": "32"}, "option.max_rolling_batch_size"),
        ({}, {"option.tensor_parallel": "2"}, "option.tensor_parallel_degree"),
        ({}, {"option.maxRollingBatchSize": "2"}, "option.max_rolling_batch_size"),
        ({}, {"option.model-id": "m"}, "option.model_id"),
    ],
)
def test_the_notice_of_an_unknown_option_suggests_the_nearest_known_name(env, properties, near):
    (notice,) = load_settings(MODEL, env, properties)[1]
    assert notice.kind == "unknown"
    assert notice.message.endswith(f"Did you mean {near}?")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("HF_MODEL_IDD", "HF_MODEL_ID"),
        ("HF_TASKS", "HF_TASK"),
        ("MAX_INPUT_LENGHT", "MAX_INPUT_LENGTH"),
        ("SM_NUM_GPU", "SM_NUM_GPUS"),
        ("TS_JOB_QUEUE_SIZES", "TS_JOB_QUEUE_SIZE"),
        ("MMS_MAX_REQUEST_SIZES", "MMS_MAX_REQUEST_SIZE"),
        ("SAGEMAKER_BIND_PORT", "SAGEMAKER_BIND_TO_PORT"),
        ("SM_SGLANG_CONTEXT_LEN", "SM_SGLANG_CONTEXT_LENGTH"),
        ("SM_LLAMA_CPP_CTX_SIZES", "SM_LLAMA_CPP_CTX_SIZE"),
        ("OPTION_S3_URL", "OPTION_S3URL"),
        ("TS_SERVICE_ENVELOPE", ""),
        ("HF_PETS", ""),
    ],
)
def test_a_name_that_nothing_reads_is_named_with_the_nearest_one(name, near):
    (notice,) = load_settings(MODEL, {name: "x"})[1]
    assert (notice.name, notice.kind) == (name, "unknown")
    assert notice.message.endswith(f"Did you mean {near}?" if near else "is unknown and has no effect.")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HF_HUB_ENABLE_HF_TRANSFER",
            "HF_HUB_CACHE",
            "HF_DATASETS_CACHE",
            "HF_ENDPOINT",
            "HF_TOKEN_PATH",
            "HF_XET_CACHE",
        ),
        *("SM_MODEL_DIR", "SM_CHANNEL_TRAINING", "SM_HP_EPOCHS", "SM_HOSTS", "MAX_JOBS", "MAX_AGE", "HFX", "SM"),
    ],
)
def test_a_name_of_a_library_gets_no_notice(name):
    assert load_settings(MODEL, {name: "x"})[1] == []


@pytest.mark.parametrize("name", ["option.xyz", "OPTION_MAX", "SM_VLLM_FOO", "option.a_b"])
def test_a_name_that_is_like_no_other_gets_no_hint(name):
    env, properties = ({name: "1"}, {}) if name.isupper() else ({}, {name: "1"})
    (notice,) = load_settings(MODEL, env, properties)[1]
    assert notice.message == f"{name} is unknown and has no effect."
