"""
Use the SageMaker SDK with Headrace: register a model as a version of a group, approve it, and deploy it serverless.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/registry.py

Only the model's name is specific to Headrace.
"""

import sagemaker
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri
from sagemaker.serverless import ServerlessInferenceConfig

GROUP = sagemaker.utils.name_from_base("smollm2-registry")

session = sagemaker.Session()
model = HuggingFaceModel(
    role=sagemaker.get_execution_role(),
    image_uri=get_huggingface_llm_image_uri("huggingface", version="3.3.6"),
    env={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"},
)
package = model.register(
    model_package_group_name=GROUP,
    content_types=["application/json"],
    response_types=["application/json"],
    inference_instances=["ml.g5.2xlarge"],
    customer_metadata_properties={"dataset": "sea"},
)
print("version: ", package.model_package_arn)

client = session.sagemaker_client
client.update_model_package(
    ModelPackageArn=package.model_package_arn, ModelApprovalStatus="Approved", ApprovalDescription="It answers well."
)
serverless = ServerlessInferenceConfig(memory_size_in_mb=2048, max_concurrency=4)
package.deploy(serverless_inference_config=serverless, endpoint_name=GROUP)

predictor = sagemaker.Predictor(
    endpoint_name=GROUP,
    sagemaker_session=session,
    serializer=sagemaker.serializers.JSONSerializer(),
    deserializer=sagemaker.deserializers.JSONDeserializer(),
)
answer = predictor.predict({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}})
print("answer:  ", answer[0]["generated_text"])

predictor.delete_model()
predictor.delete_endpoint()
client.delete_model_package(ModelPackageName=package.model_package_arn)
client.delete_model_package_group(ModelPackageGroupName=GROUP)
