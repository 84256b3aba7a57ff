"""Settings in a model's folder: properties, YAML, manifests, and values of container variables."""

import json

from headrace.core.errors import HeadraceError
from headrace.serving.handlers.code_metrics import CodeMetrics
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.torchserve import make_spec
from headrace.serving.handlers.torchserve_config import load_config, management_options, server_settings, versions_of
from headrace.serving.settings.container_names import read_container_names
from headrace.serving.settings.model_folder import read_model_folder
from tests.fuzz.target import Target
from tests.fuzz.targets.archives import scene


def _properties(data):
    """LMI's `serving.properties`, with every setting that it may name."""
    folder = scene("properties")
    (folder / "serving.properties").write_bytes(data)
    found = read_model_folder(folder)
    read_container_names({}, found.properties, found.model_config, container=True)


def _model_config(data):
    """TorchServe's `model-config.yaml`."""
    folder = scene("yaml")
    (folder / "model-config.yaml").write_bytes(data)
    found = read_model_folder(folder)
    read_container_names({}, found.properties, found.model_config, container=True)


def _variables(data):
    """Variables of a container, one per line."""
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").split("\n"))
    read_container_names({name: value for name, _, value in pairs}, {}, container=True)


def _manifest(data):
    """TorchServe's manifest on the first line, the model's YAML after it."""
    manifest, _, config = data.partition(b"\n")
    folder = scene("manifest")
    (folder / "MAR-INF").mkdir(exist_ok=True)
    (folder / "handler.py").write_text("def handle(data, context):\n    return data\n")
    (folder / "MAR-INF" / "MANIFEST.json").write_bytes(manifest)
    (folder / "model-config.yaml").write_bytes(config)
    make_spec(find_model(folder, model_name="m", env={}))


def _server_config(data):
    """TorchServe's `config.properties`."""
    folder = scene("config")
    (folder / "config.properties").write_bytes(data)
    config = load_config({"HOME": "/"}, [folder])
    server_settings(config.env)
    management_options(config.env)
    versions_of(config.env, "m")


def _metric_lines(data):
    """Lines that a model's own code prints."""
    metrics = CodeMetrics()
    for line in data.decode("utf-8", "replace").split("\n"):
        metrics.observe(line)
    list(metrics.families())


_MANIFEST = {"model": {"modelName": "m", "modelVersion": "1.0", "handler": "handler.py:handle"}, "runtime": "python"}
_PROPERTIES = (
    b"engine=MPI\noption.model_id=.\noption.tensor_parallel_degree=max\noption.rolling_batch=auto\n"
    b"option.max_rolling_batch_size=32\noption.dtype=bf16\n"
    b'option.speculative_config={"method": "ngram", "num_speculative_tokens": 3}\n'
)
_SERVER = (
    b'inference_address=http://127.0.0.1:8080\nmodels={\\\n  "m": {"1.0": {"batchSize": 4, "defaultVersion": true}}}\n'
    b"load_models=all\ndefault_workers_per_model=2\nallowed_urls=https://a/.*,file://.*\njob_queue_size=$$HOME$$\n"
)
_VALUES = (
    b"=",
    b"true",
    b"-1",
    b"1e400",
    b"nan",
    b"{}",
    b"[",
    b"\\\n",
    b'{"method": "ngram", "num_speculative_tokens": 1e400}',
)

TARGETS = (
    Target(
        "serving-properties",
        _properties,
        make_seeds=lambda: {"usual": _PROPERTIES},
        words=(*_VALUES, b"option.", b"model_id", b"gpu.minWorkers=", b"option.entryPoint=", b"option.quantize=awq\n"),
        suite_cases=400,
    ),
    Target(
        "model-config-yaml",
        _model_config,
        make_seeds=lambda: {
            "usual": b"minWorkers: 1\nhandler:\n  model_path: a\n  vllm_engine_config:\n    max_num_seqs: 4\n"
        },
        words=(b"&a [*a, *a]", b"!!python/object:os.system x", b"<<: *a", b"? ", b"|\n", b"0x7f", b"2001-99-01", b"- "),
        suite_cases=200,
    ),
    Target(
        "container-variables",
        _variables,
        make_seeds=lambda: {
            "tgi": b"HF_MODEL_ID=a/b\nMAX_INPUT_LENGTH=1024\nMAX_TOTAL_TOKENS=2048\nSM_NUM_GPUS=1\nQUANTIZE=awq",
            "lmi": b"OPTION_MODEL_ID=a\nOPTION_SPECULATIVE_CONFIG={}\nOPTION_MAX_ROLLING_BATCH_SIZE=4",
            "vllm": b'SM_VLLM_MODEL=a\nSM_VLLM_SPECULATIVE_CONFIG={"method": "ngram", "num_speculative_tokens": 3}',
        },
        words=_VALUES,
        suite_cases=400,
    ),
    Target(
        "torchserve-manifest",
        _manifest,
        make_seeds=lambda: {
            "usual": json.dumps(_MANIFEST).encode() + b"\nminWorkers: 1\nbatchSize: 4\nresponseTimeout: 5\n"
        },
        words=(
            *_VALUES,
            b'"handler":',
            b'"configFile": "../x"',
            b"maxBatchDelay: ",
            b"deviceIds: [0]",
            b"parallelType: pp\n",
        ),
        suite_cases=200,
    ),
    Target(
        "torchserve-config",
        _server_config,
        (HeadraceError,),
        make_seeds=lambda: {"usual": _SERVER},
        words=(*_VALUES, b"$$X$$", b"models=", b"management_address=", b"(a+)+$", b"unregister_model_timeout="),
        suite_cases=300,
    ),
    Target(
        "metric-lines",
        _metric_lines,
        (),
        make_seeds=lambda: {"usual": b"[METRICS]Latency.Milliseconds:4.5|#Level:Host,a:b|#hostname:h,1650953744,uuid"},
        words=(b"|#", b":", b".Count", b"nan", b"1e999", b","),
        suite_cases=400,
    ),
)
