"""
Use the SageMaker SDK with Headrace: an embedding model in the image of the Hugging Face Inference Toolkit.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3' numpy
    python examples/sagemaker/embeddings.py

Only the model's name is specific to Headrace. The toolkit answers with the vectors of all tokens, whose mean is the
embedding.
"""

import numpy as np
import sagemaker
from sagemaker.huggingface import HuggingFaceModel

ENDPOINT = sagemaker.utils.name_from_base("minilm-embeddings")
SENTENCES = ["A man is eating food.", "A man eats a piece of bread.", "The stock market fell on Monday."]

model = HuggingFaceModel(
    role=sagemaker.get_execution_role(),
    transformers_version="4.49.0",
    pytorch_version="2.6.0",
    py_version="py312",
    env={"HF_MODEL_ID": "minilm", "HF_TASK": "feature-extraction"},
)
predictor = model.deploy(endpoint_name=ENDPOINT, initial_instance_count=1, instance_type="ml.m5.xlarge")


def embed(sentence: str) -> np.ndarray:
    states = np.array(predictor.predict({"inputs": sentence})[0])
    mean = states.mean(axis=0)
    return mean / np.linalg.norm(mean)


food, bread, market = map(embed, SENTENCES)
print(f"dimensions: {len(food)}")
print(f"food and bread: {food @ bread:.2f}, food and market: {food @ market:.2f}")

predictor.delete_model()
predictor.delete_endpoint()
