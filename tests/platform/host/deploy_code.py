"""
Deploys models with code of their own by the SageMaker SDK 2.x, invokes them, and prints one line of JSON each.

`python deploy_code.py FOLDER` with the environment of `headrace env`. It imports no part of Headrace.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import boto3
import joblib
import numpy as np
import sagemaker
import xgboost
from sagemaker.base_serializers import CSVSerializer, JSONSerializer
from sagemaker.deserializers import CSVDeserializer, JSONDeserializer
from sagemaker.djl_inference import DJLModel
from sagemaker.huggingface import HuggingFaceModel
from sagemaker.pytorch import PyTorchModel
from sagemaker.sklearn import SKLearnModel
from sagemaker.xgboost import XGBoostModel
from sklearn.linear_model import LinearRegression

ROLE = "arn:aws:iam::000000000000:role/any"
DESCRIBED: dict[str, str] = {}
"""What the endpoints in service say about themselves, by the class of the model."""
ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)

SKLEARN = """
import os, joblib
def model_fn(model_dir):
    return joblib.load(os.path.join(model_dir, "model.joblib"))
"""
XGBOOST = """
import os, xgboost
def model_fn(model_dir):
    booster = xgboost.Booster()
    booster.load_model(os.path.join(model_dir, "model.json"))
    return booster
"""
PYTORCH = """
import os, torch
def model_fn(model_dir):
    return torch.jit.load(os.path.join(model_dir, "model.pth"))
"""
HUGGINGFACE = """
from greeting import text
def model_fn(model_dir, context=None):
    return len
def transform_fn(model, data, content_type, accept):
    return '{"length": %d, "greeting": "%s"}' % (model(data), text)
"""
DJL = """
from djl_python import Input, Output
from greeting import text
def handle(inputs):
    if inputs.is_empty():
        return None
    return Output().add_as_json({"text": text, "given": inputs.get_as_json()})
"""


def main(folder: Path) -> None:
    session = sagemaker.Session()
    deployments = (sklearn, xgboost_, pytorch, huggingface, djl)
    for deploy in deployments:
        (folder / deploy.__name__).mkdir()
        answer = deploy(folder / deploy.__name__, session)
        print(
            "\n" + json.dumps({deploy.__name__: answer}, default=lambda value: np.asarray(value).tolist()), flush=True
        )
    print(json.dumps({"described": DESCRIBED}))


def sklearn(folder: Path, session: sagemaker.Session) -> Any:
    joblib.dump(LinearRegression().fit(ROWS, [3, 7]), folder / "model.joblib")
    model = SKLearnModel(
        model_data=upload(session, folder, "model.joblib"),
        role=ROLE,
        entry_point=script(folder, SKLEARN),
        framework_version="1.2-1",
        sagemaker_session=session,
    )
    predictor = deployed(model)
    by_npy = predictor.predict(ROWS)
    predictor.serializer, predictor.deserializer = CSVSerializer(), CSVDeserializer()
    by_csv = predictor.predict(ROWS)
    predictor.serializer, predictor.deserializer = JSONSerializer(), JSONDeserializer()
    return removed(predictor, {"npy": by_npy, "csv": by_csv, "json": predictor.predict(ROWS.tolist())})


def xgboost_(folder: Path, session: sagemaker.Session) -> Any:
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(ROWS, label=[3, 7]), num_boost_round=50)
    booster.save_model(folder / "model.json")
    model = XGBoostModel(
        model_data=upload(session, folder, "model.json"),
        role=ROLE,
        entry_point=script(folder, XGBOOST),
        framework_version="1.7-1",
        sagemaker_session=session,
    )
    predictor = deployed(model)
    predictor.serializer, predictor.deserializer = CSVSerializer(), CSVDeserializer()
    return removed(predictor, {"csv": predictor.predict(ROWS)})


def pytorch(folder: Path, session: sagemaker.Session) -> Any:
    import torch

    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.fill_(2)
        module.bias.fill_(1)
    torch.jit.script(module).save(folder / "model.pth")
    model = PyTorchModel(
        model_data=upload(session, folder, "model.pth"),
        role=ROLE,
        entry_point=script(folder, PYTORCH),
        framework_version="2.6.0",
        py_version="py312",
        sagemaker_session=session,
    )
    predictor = deployed(model)
    by_npy = predictor.predict(ROWS)
    predictor.serializer, predictor.deserializer = JSONSerializer(), JSONDeserializer()
    return removed(predictor, {"npy": by_npy, "json": predictor.predict(ROWS.tolist())})


def huggingface(folder: Path, session: sagemaker.Session) -> Any:
    source = folder / "source"
    source.mkdir()
    (source / "inference.py").write_text(HUGGINGFACE)
    with_packages(source, folder.parent)
    (folder / "config.json").write_text("{}")
    model = HuggingFaceModel(
        model_data=upload(session, folder, "config.json"),
        role=ROLE,
        entry_point="inference.py",
        source_dir=str(source),
        transformers_version="4.37.0",
        pytorch_version="2.1.0",
        py_version="py310",
        sagemaker_session=session,
    )
    predictor = deployed(model)
    return removed(predictor, predictor.predict({"inputs": "abc"}))


def djl(folder: Path, session: sagemaker.Session) -> Any:
    (folder / "model.py").write_text(DJL)
    (folder / "serving.properties").write_text("engine=Python\n")
    with_packages(folder, folder.parent)
    model = DJLModel(
        model_data=upload(session, folder, "model.py", "serving.properties", "requirements.txt", "requirements"),
        role=ROLE,
        image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.26.0-deepspeed0.12.6-cu121",
        sagemaker_session=session,
    )
    predictor = deployed(model)
    return removed(predictor, predictor.predict({"inputs": "abc"}))


def upload(session: sagemaker.Session, folder: Path, *names: str) -> str:
    archive = folder / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            tar.add(folder / name, name)
    bucket, key = session.default_bucket(), f"code/{folder.name}/model.tar.gz"
    boto3.client("s3").upload_file(str(archive), bucket, key)
    return f"s3://{bucket}/{key}"


def script(folder: Path, code: str) -> str:
    (folder / "inference.py").write_text(code)
    return str(folder / "inference.py")


def with_packages(folder: Path, wheels: Path) -> None:
    """Ask for a package that only a wheel beside the requirements has."""
    (folder / "requirements.txt").write_text("greeting==1.0\n")
    (folder / "requirements").mkdir()
    (wheel,) = wheels.glob("greeting-*.whl")
    (folder / "requirements" / wheel.name).write_bytes(wheel.read_bytes())


def deployed(model: Any) -> Any:
    kind = type(model).__name__
    name = sagemaker.utils.name_from_base(f"code-{kind}", short=True)
    predictor = model.deploy(
        initial_instance_count=1,
        instance_type="ml.c5.xlarge",
        endpoint_name=name,
        container_startup_health_check_timeout=600,
    )
    (variant,) = boto3.client("sagemaker").describe_endpoint(EndpointName=name)["ProductionVariants"]
    DESCRIBED[kind] = variant["VariantStatus"][0]["StatusMessage"]
    return predictor


def removed(predictor: Any, answer: Any) -> Any:
    predictor.delete_model()
    predictor.delete_endpoint()
    return answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
