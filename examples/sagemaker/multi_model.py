"""
Use the SageMaker SDK with Headrace: many models behind one endpoint, loaded when they are asked for.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/multi_model.py

Nothing here is specific to Headrace. Each model is an archive with its weights and its code.
"""

import io
import json
import tarfile
import tempfile
from pathlib import Path

import sagemaker
from sagemaker.multidatamodel import MultiDataModel

CODE = """
import json
from pathlib import Path


def model_fn(model_dir):
    return json.loads(Path(model_dir, "weights.json").read_text())


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(numbers, weights):
    return [number * weights["factor"] for number in numbers]


def output_fn(answer, accept):
    return json.dumps(answer)
"""
NAME = sagemaker.utils.name_from_base("multi-model")


def archive(path: Path, factor: int) -> Path:
    files = {"weights.json": json.dumps({"factor": factor}), "code/inference.py": CODE}
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content.encode()))
    return path


session = sagemaker.Session()
prefix = f"s3://{session.default_bucket()}/{NAME}/"
image = sagemaker.image_uris.retrieve(
    "pytorch",
    session.boto_region_name,
    version="2.6.0",
    py_version="py312",
    image_scope="inference",
    instance_type="ml.m5.large",
)
models = MultiDataModel(
    name=NAME,
    model_data_prefix=prefix,
    image_uri=image,
    role=sagemaker.get_execution_role(),
    predictor_cls=sagemaker.Predictor,
    sagemaker_session=session,
)
with tempfile.TemporaryDirectory() as folder:
    for name, factor in (("double", 2), ("triple", 3)):
        models.add_model(str(archive(Path(folder, f"{name}.tar.gz"), factor)))

    predictor = models.deploy(
        initial_instance_count=1,
        instance_type="ml.m5.large",
        serializer=sagemaker.serializers.JSONSerializer(),
        deserializer=sagemaker.deserializers.JSONDeserializer(),
    )
    print("models: ", *sorted(models.list_models()))
    for name in ("double", "triple"):
        print(f"{name}: ", predictor.predict([1, 2, 3], target_model=f"{name}.tar.gz"))

    # A model that is added later needs no update of the endpoint.
    models.add_model(str(archive(Path(folder, "tenfold.tar.gz"), 10)), "team/tenfold.tar.gz")
    print("tenfold:", predictor.predict([1, 2, 3], target_model="team/tenfold.tar.gz"))

predictor.delete_endpoint()
session.delete_model(NAME)
