"""
Use the SageMaker SDK with Headrace: an inference pipeline of code, a language model and code again (`PipelineModel`).

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/pipeline.py

Only the model's name is specific to Headrace.
"""

import tempfile
from pathlib import Path

import sagemaker
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri
from sagemaker.pipeline import PipelineModel
from sagemaker.sklearn import SKLearnModel

NAME = sagemaker.utils.name_from_base("smollm2-pipeline")
PROMPT = """
import json
def model_fn(model_dir):
    return "{} is"
def transform_fn(template, data, content_type, accept):
    inputs = template.format(json.loads(data)["topic"])
    return json.dumps({"inputs": inputs, "parameters": {"max_new_tokens": 12}}), "application/json"
"""
ANSWER = """
import json
def model_fn(model_dir):
    return None
def transform_fn(model, data, content_type, accept):
    return json.dumps({"text": json.loads(data)[0]["generated_text"]}), "application/json"
"""

session = sagemaker.Session()
role = sagemaker.get_execution_role()
SKLEARN = sagemaker.image_uris.retrieve(
    "sklearn", session.boto_region_name, version="1.2-1", instance_type="ml.m5.large"
)


def code(name: str, source: str) -> SKLearnModel:
    folder = Path(tempfile.mkdtemp())
    (folder / f"{name}.py").write_text(source)
    return SKLearnModel(
        model_data=None,
        role=role,
        entry_point=f"{name}.py",
        source_dir=str(folder),
        image_uri=SKLEARN,
        sagemaker_session=session,
    )


chat = HuggingFaceModel(
    role=role,
    sagemaker_session=session,
    image_uri=get_huggingface_llm_image_uri("huggingface", version="3.3.6"),
    env={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"},
)
pipeline = PipelineModel(
    models=[code("prompt", PROMPT), chat, code("answer", ANSWER)], role=role, sagemaker_session=session, name=NAME
)
pipeline.deploy(initial_instance_count=1, instance_type="ml.g5.2xlarge", endpoint_name=NAME)
predictor = sagemaker.Predictor(
    endpoint_name=NAME,
    sagemaker_session=session,
    serializer=sagemaker.serializers.JSONSerializer(),
    deserializer=sagemaker.deserializers.JSONDeserializer(),
)
print("answer:  ", predictor.predict({"topic": "The sea"})["text"])
try:
    predictor.predict({"question": "?"})
except session.sagemaker_runtime_client.exceptions.ModelError as error:
    print("failed:  ", error.response["Error"]["Message"].partition(" with message")[0])

predictor.delete_endpoint()
pipeline.delete_model()
