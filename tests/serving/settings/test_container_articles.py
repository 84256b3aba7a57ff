"""The settings of articles about other containers, unchanged."""

from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.model_folder import parse_model_config
from headrace.serving.settings.properties_file import parse_properties

from .setting_examples import MODEL


def test_the_settings_of_the_llama2_article_work_unchanged():
    env = {
        "HF_MODEL_ID": "meta-llama/Llama-2-7b-chat-hf",
        "SM_NUM_GPUS": "4",
        "MAX_INPUT_LENGTH": "1024",
        "MAX_TOTAL_TOKENS": "2048",
        "MAX_BATCH_TOTAL_TOKENS": "8192",
        "HUGGING_FACE_HUB_TOKEN": "hf_x",
    }
    settings, notices = load_settings({}, env)
    assert (settings.model, settings.max_prompt_tokens, settings.max_model_len) == (
        "meta-llama/Llama-2-7b-chat-hf",
        1024,
        2048,
    )
    assert settings.dialect == "tgi-3"
    assert settings.max_kv_cache_tokens == 8192
    assert {notice.name for notice in notices if notice.kind == "ignored"} == {"SM_NUM_GPUS"}


def test_the_serving_properties_of_the_articles_work_unchanged():
    text = """
    engine=MPI
    option.entryPoint=djl_python.huggingface
    option.tensor_parallel_degree=max
    option.rolling_batch = lmi-dist
    option.max_rolling_batch_size: 32
    option.model_id=TheBloke/Llama-2-7b-chat-fp16
    # a comment
    option.paged_attention=true
    """
    settings, notices = load_settings({"container": "true"}, {}, parse_properties(text))
    assert settings.model == "TheBloke/Llama-2-7b-chat-fp16"
    assert (settings.max_num_seqs, settings.rolling_batch, settings.dialect) == (32, "lmi-dist", "lmi-17")
    assert {notice.kind for notice in notices} == {"applied"}


def test_the_model_config_of_the_torchserve_article_works_unchanged():
    text = """
    # TorchServe Frontend Parameters
    minWorkers: 1
    maxWorkers: 1
    maxBatchDelay: 100
    responseTimeout: 10800
    batchSize: 16
    # TorchServe Backend Custom Handler Parameters
    handler:
        model_checkpoint_dir: "llama-2-13b-split"
        amp: "bf16"
        tp_degree: 12
        max_length: 100
    micro_batching:
        # Used by batch_size in function LlamaForSampling.from_pretrained
        micro_batch_size: 1
        parallelism:
            preprocess: 2
            inference: 1
            postprocess: 2
    """
    settings, notices = load_settings(
        {"container": "true"}, {"TS_INSTALL_PY_DEP_PER_MODEL": "true"}, {}, parse_model_config(text)
    )
    assert (settings.model, settings.default_max_new_tokens) == ("llama-2-13b-split", 100)
    assert settings.dialect == "torchserve"
    assert {notice.kind for notice in notices} == {"applied", "ignored"}
    assert {notice.name for notice in notices} >= {"handler.tp_degree", "micro_batching", "batchSize"}


def test_other_handler_keys_have_no_effect_because_handlers_are_not_run():
    config = {"handler.prompt_prefix": "x", "handler.vllm_engine_config.max_model_len": "64", "minWorker": "1"}
    settings, notices = load_settings(MODEL, {}, {}, config)
    assert settings.max_model_len == 64
    assert {notice.name: notice.kind for notice in notices} == {
        "handler.prompt_prefix": "ignored",
        "handler.vllm_engine_config.max_model_len": "applied",
        "minWorker": "unknown",
    }
    assert "Did you mean minWorkers?" in "".join(notice.message for notice in notices)
