"""The import paths of the stand-ins: users' code imports these names from these modules, as from the libraries."""

import json
import subprocess
import sys

from tests.headrace_handler.support import STANDINS

OFFERED = """
djl_python: Input Output PairList Session SessionManager
djl_python.async_utils: create_non_stream_output create_stream_chunk_output handle_streaming_response
djl_python.encode_decode: decode decode_csv encode
djl_python.huggingface: HuggingFaceService get_rolling_batch_class_from_str handle infer_task register_adapter
    unregister_adapter update_adapter
djl_python.input_parser: SAGEMAKER_ADAPTER_IDENTIFIER_HEADER init_handler input_formatter prediction_handler
djl_python.inputs: Input
djl_python.np_util: from_nd_list from_npz to_nd_list
djl_python.output_formatter: TextGenerationOutput init_handler input_formatter output_formatter prediction_handler
djl_python.outputs: Output encode_content format_outputs
djl_python.pair_list: PairList
djl_python.request_io: RequestInput RequestOutput Sequence TextGenerationOutput TextInput Token
djl_python.session_manager: Session SessionManager
djl_python.sklearn_handler: CustomFormatterError SklearnHandler handle
djl_python.streaming_utils: HFStreamer StreamClosed StreamingUtils
sagemaker_containers:
sagemaker_containers._content_types: ANY CSV JSON NPY OCTET_STREAM UTF8_TYPES
sagemaker_containers._encoders: _decoders_map _encoders_map array_to_csv array_to_json array_to_npy
    array_to_recordio_protobuf csv_to_numpy decode encode json_to_numpy npy_to_numpy
sagemaker_containers._env: ServingEnv base_dir code_dir input_dir model_dir num_cpus num_gpus output_data_dir
    output_dir
sagemaker_containers._errors: ClientError ImportModuleError UnsupportedFormatError
sagemaker_containers._modules: DEFAULT_MODULE_NAME exists has_requirements import_module
sagemaker_containers._transformer: Transformer default_input_fn default_model_fn default_output_fn
    default_predict_fn
sagemaker_containers._worker: Response full_content_type
sagemaker_containers.beta:
sagemaker_containers.beta.framework: content_types encoders entry_point env errors modules transformer worker
sagemaker_containers.entry_point: install run
sagemaker_huggingface_inference_toolkit:
sagemaker_huggingface_inference_toolkit.content_types: ANY AUDIO_TYPES BMP CSV FLAC GIF JPEG JSON MP3 NPY
    OCTET_STREAM OGG PNG TIFF UTF8_TYPES VISION_TYPES WAV WEBP X_AUDIO X_IMAGE
sagemaker_huggingface_inference_toolkit.decoder_encoder: _decoder_map _encoder_map decode decode_audio decode_csv
    decode_image decode_json encode encode_csv encode_image encode_json
sagemaker_huggingface_inference_toolkit.handler_service: HuggingFaceHandlerService
sagemaker_inference:
sagemaker_inference.content_types: ANY CSV JSON NPY NPZ OCTET_STREAM UTF8_TYPES
sagemaker_inference.decoder: _decoder_map decode
sagemaker_inference.default_handler_service: DefaultHandlerService
sagemaker_inference.default_inference_handler: DefaultInferenceHandler
sagemaker_inference.encoder: SUPPORTED_CONTENT_TYPES _encoder_map encode
sagemaker_inference.environment: Environment base_dir code_dir model_dir
sagemaker_inference.errors: BaseInferenceToolkitError GenericInferenceToolkitError UnsupportedFormatError
sagemaker_inference.parameters: BASE_PATH_ENV BIND_TO_PORT_ENV DEFAULT_INVOCATIONS_ACCEPT_ENV LOG_LEVEL_ENV
    MAX_REQUEST_SIZE MODEL_SERVER_TIMEOUT_ENV MODEL_SERVER_TIMEOUT_SECONDS_ENV MODEL_SERVER_VMARGS
    MODEL_SERVER_WORKERS_ENV MULTI_MODEL_ENV SAFE_PORT_RANGE_ENV STARTUP_TIMEOUT_ENV USER_PROGRAM_ENV
sagemaker_inference.transformer: Transformer
sagemaker_inference.utils: parse_accept read_file remove_crlf retrieve_content_type_header write_file
sagemaker_xgboost_container:
sagemaker_xgboost_container.data_utils: CSV LIBSVM PARQUET RECORDIO_PROTOBUF get_content_type get_dmatrix
sagemaker_xgboost_container.encoder: _dmatrix_decoders_map csv_to_dmatrix decode json_to_jsonlines libsvm_to_dmatrix
    recordio_protobuf_to_dmatrix
torch_neuronx:
torch_neuronx.xla_impl:
torch_neuronx.xla_impl.data_parallel: device_count
transformers_neuronx:
transformers_neuronx.config: ContinuousBatchingConfig GenerationConfig NeuronConfig QuantizationConfig
transformers_neuronx.constants: GQA LAYOUT_BSH LAYOUT_HSB LAYOUT_SBH
transformers_neuronx.generation_utils: HuggingFaceGenerationModelAdapter
transformers_neuronx.llama:
transformers_neuronx.llama.model: LlamaForSampling
transformers_neuronx.module: CpuModelForSampling LISTING SPLIT load_split save_pretrained_split
transformers_neuronx.opt:
transformers_neuronx.opt.model: OPTForSampling
ts:
ts.context: Context RequestProcessor
ts.handler_utils: send_intermediate_predict_response
ts.handler_utils.micro_batching: HANDLER_METHODS MicroBatching
ts.handler_utils.text_utils: get_tokenizer ngrams_iterator
ts.handler_utils.timer: timed
ts.handler_utils.utils: import_class send_intermediate_predict_response
ts.metrics:
ts.metrics.adders: COUNTER GAUGE MetricAdders
ts.metrics.caching_metric: CachingMetric UNITS metric_line
ts.metrics.dimension: Dimension
ts.metrics.metric: Metric
ts.metrics.metric_cache_errors: MetricsCacheKeyError MetricsCacheTypeError MetricsCacheValueError
ts.metrics.metric_cache_yaml_impl: MetricsCacheYamlImpl
ts.metrics.metric_type_enum: MetricTypes
ts.metrics.metrics_store: MetricsStore
ts.protocol: send_intermediate_predict_response
ts.protocol.otf_message_handler: send_intermediate_predict_response
ts.torch_handler:
ts.torch_handler.base_handler: BaseHandler compile_options
ts.torch_handler.image_classifier: ImageClassifier
ts.torch_handler.image_segmenter: ImageSegmenter
ts.torch_handler.object_detector: ObjectDetector
ts.torch_handler.request_envelope:
ts.torch_handler.request_envelope.base: BaseEnvelope content_of
ts.torch_handler.request_envelope.body: BodyEnvelope
ts.torch_handler.request_envelope.json: JSONEnvelope
ts.torch_handler.request_envelope.kserve: KServeEnvelope
ts.torch_handler.request_envelope.kservev2: KServev2Envelope
ts.torch_handler.text_classifier: TextClassifier
ts.torch_handler.text_handler: TextHandler
ts.torch_handler.vision_handler: VisionHandler imagenet_processing
ts.utils:
ts.utils.util: PredictionException get_yaml_config list_classes_from_module load_label_mapping map_class_to_label
ts.version: __version__
"""
"""Module: names; a line that begins with spaces continues the one before."""

LIST_MODULES = """
import importlib, json, pkgutil, sys
packages = sys.argv[1].split(",")
for package in packages:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name != "ts.handler_utils.hf_batch_streamer":  # it needs transformers
            importlib.import_module(found.name)
offered = {name: sorted(vars(module)) for name, module in sys.modules.items() if name.split(".")[0] in packages}
print(json.dumps(offered))
"""


def offered() -> dict[str, list[str]]:
    lines = OFFERED.replace("\n    ", " ").strip().splitlines()
    return {module: names.split() for module, _, names in (line.partition(":") for line in lines)}


def test_the_modules_of_the_libraries_and_their_names_can_be_imported() -> None:
    packages = sorted({module.partition(".")[0] for module in offered()})
    assert packages == sorted(path.name for path in STANDINS.iterdir() if (path / "__init__.py").is_file())
    paths = [str(STANDINS.parent.parent), str(STANDINS)]
    code = f"import sys; sys.path[:0] = {paths!r}\n{LIST_MODULES}"
    child = subprocess.run(
        [sys.executable, "-P", "-c", code, ",".join(packages)], check=True, capture_output=True, text=True
    )
    found = json.loads(child.stdout)
    assert sorted(found) == sorted(offered())
    missing = {f"{module}.{name}" for module, names in offered().items() for name in names if name not in found[module]}
    assert not missing
    assert (STANDINS / "ts" / "handler_utils" / "hf_batch_streamer.py").is_file()
