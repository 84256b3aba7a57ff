"""
Deploy a TorchServe handler for AWS Inferentia2 with the SageMaker SDK, as an article on Llama 2 does, on a CPU.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/inferentia2.py CHECKPOINT [MICRO_BATCH_SIZE]

CHECKPOINT is a folder with a Llama as transformers or `save_pretrained_split` of Transformers NeuronX writes it.
The handler is that of examples/custom_code/inferentia2.
"""

import io
import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import sagemaker

HANDLER = Path(__file__).resolve().parents[1] / "custom_code" / "inferentia2"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "Water boils at",
    "My favourite season is autumn, because",
]
CHECKPOINT, MICRO_BATCH_SIZE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "4"
NAME = sagemaker.utils.name_from_base(f"ts-inf2-llama-b{MICRO_BATCH_SIZE}")


class Parser:
    """Joins the parts of the stream into words, as in the article: the last character of a part is dropped."""

    def __init__(self):
        self._buffer = io.BytesIO()
        self._position = 0

    def write(self, content):
        self._buffer.seek(0, io.SEEK_END)
        self._buffer.write(content)

    def scan_lines(self):
        self._buffer.seek(self._position)
        for line in self._buffer.readlines():
            self._position += len(line)
            yield line[:-1]


def packaged(folder):
    """Copy the handler and the checkpoint into a folder, as `torch-model-archiver --archive-format no-archive` does."""
    shutil.copytree(HANDLER, folder, dirs_exist_ok=True)
    config = folder / "model-config.yaml"
    config.write_text(config.read_text().replace("micro_batch_size: 4", f"micro_batch_size: {MICRO_BATCH_SIZE}"))
    shutil.copytree(CHECKPOINT, folder / "checkpoint")
    return str(folder)


def stream(prompt):
    response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=NAME, Body=prompt.encode(), ContentType="application/json"
    )
    for event in response["Body"]:
        yield event["PayloadPart"]["Bytes"]


session = sagemaker.Session()
with tempfile.TemporaryDirectory() as temporary:
    s3_uri = session.upload_data(packaged(Path(temporary) / "llama-neuronx"), key_prefix=f"{NAME}/llama-neuronx")

model = sagemaker.Model(
    name=NAME,
    model_data={"S3DataSource": {"S3Uri": f"{s3_uri}/", "S3DataType": "S3Prefix", "CompressionType": "None"}},
    image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference-neuronx:1.13.1-neuronx-py310-sdk2.13.2",
    role=sagemaker.get_execution_role(),
    sagemaker_session=session,
    env={"TS_INSTALL_PY_DEP_PER_MODEL": "true"},
)
model.deploy(
    initial_instance_count=1,
    instance_type="ml.inf2.24xlarge",
    endpoint_name=NAME,
    volume_size=512,
    model_data_download_timeout=3600,
    container_startup_health_check_timeout=600,
)

print()  # below the line that the SDK has printed while it waited
parser = Parser()
for part in stream("Today the weather is really nice and I am planning on"):
    parser.write(part)
    for line in parser.scan_lines():
        print(line.decode(), end=" ", flush=True)
print()

with ThreadPoolExecutor(len(PROMPTS)) as clients:  # at once: the handler gets them in one batch
    for prompt, parts in zip(PROMPTS, clients.map(lambda prompt: list(stream(prompt)), PROMPTS), strict=True):
        print(json.dumps({"prompt": prompt, "parts": len(parts), "text": b"".join(parts).decode()}))

client = boto3.client("sagemaker")
client.delete_endpoint(EndpointName=NAME)
client.delete_endpoint_config(EndpointConfigName=NAME)
client.delete_model(ModelName=NAME)
boto3.resource("s3").Bucket(session.default_bucket()).objects.filter(Prefix=NAME).delete()
