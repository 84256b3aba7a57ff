"""
Use the SageMaker SDK with Headrace: an uncompressed TorchServe folder on S3, plain text in, words streamed out.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/torchserve.py MODEL.gguf
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

import boto3
import sagemaker

NAME = sagemaker.utils.name_from_base("smollm2-torchserve")
CONFIG = """\
minWorkers: 1
batchSize: 16
handler:
    model_checkpoint_dir: "model.gguf"
    max_length: 24
"""


class Parser:
    """Joins the parts of the stream into words, as in the TorchServe article: the last byte of a part is dropped."""

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


session = sagemaker.Session()
with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary) / "smollm2"
    folder.mkdir()
    (folder / "model-config.yaml").write_text(CONFIG)
    shutil.copy(sys.argv[1], folder / "model.gguf")
    s3_uri = session.upload_data(str(folder), key_prefix=f"{NAME}/smollm2")

model = sagemaker.Model(
    name=NAME,
    model_data={"S3DataSource": {"S3Uri": f"{s3_uri}/", "S3DataType": "S3Prefix", "CompressionType": "None"}},
    image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference-neuronx:1.13.1-neuronx-py310-sdk2.13.2",
    role=sagemaker.get_execution_role(),
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

body = b"Today the weather is really nice and I am planning on"
response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=NAME, Body=body, ContentType="application/json"
)
parser = Parser()
for event in response["Body"]:
    parser.write(event["PayloadPart"]["Bytes"])
    for line in parser.scan_lines():
        print(line.decode(), end=" ", flush=True)
print()

client = boto3.client("sagemaker")
client.delete_endpoint(EndpointName=NAME)
client.delete_endpoint_config(EndpointConfigName=NAME)
client.delete_model(ModelName=NAME)
boto3.resource("s3").Bucket(session.default_bucket()).objects.filter(Prefix=NAME).delete()
