"""The image `sagemaker-xgboost`, with real models."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace_handler.contract import Contract, LoadFailed
from tests.headrace_handler.sagemaker_models import (
    CSV,
    JSON,
    invoke,
    load,
    load_program,
)
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import call

pytestmark = pytest.mark.usefixtures("sagemaker_imports")


class TestXGBoost:
    """`sagemaker-xgboost`: with a script, and as the algorithm without one."""

    ROWS = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]] * 4)

    def train(self, **params: Any) -> Any:
        xgboost = pytest.importorskip("xgboost")
        labels = self.ROWS[:, 0] if "num_class" not in params else self.ROWS.sum(axis=1)
        settings = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1} | params
        return xgboost.train(settings, xgboost.DMatrix(self.ROWS, label=labels), num_boost_round=4)

    def expected(self, booster: Any, rows: Any) -> Any:
        return booster.predict(pytest.importorskip("xgboost").DMatrix(np.array(rows)))

    def algorithm(self, folder: Path, **params: Any) -> tuple[Contract, Any]:
        booster = self.train(**params)
        booster.save_model(folder / "model.json")
        return load(folder, "xgboost", entry=""), booster

    @pytest.mark.parametrize(
        ("content_type", "body"), [(CSV, b"1,0\n0,1\n"), ("text/libsvm", b"0 0:1 1:0\n0 0:0 1:1"), (CSV, b"1;0\n0;1")]
    )
    def test_a_script_gets_its_matrix_and_its_predictions_written(
        self, tmp_path: Path, content_type: str, body: bytes
    ) -> None:
        booster = self.train()
        booster.save_model(tmp_path / "model.json")
        code = """
            import os, xgboost
            def model_fn(model_dir):
                booster = xgboost.Booster()
                booster.load_model(os.path.join(model_dir, "model.json"))
                return booster
        """

        reply = invoke(load_program(tmp_path, code, "xgboost"), body, content_type, CSV)

        assert reply.header("Content-Type") == "text/csv; charset=utf-8"
        values = [float(line) for line in reply.body.splitlines()]
        np.testing.assert_allclose(values, self.expected(booster, [[1, 0], [0, 1]]), rtol=1e-5)

    @pytest.mark.parametrize(
        ("body", "rows"),
        [
            (b"0 1:1\n0 0:1 1:0\n", [[np.nan, 1], [1, 0]]),
            (b"0 1:0.5\n0 1:1\n", [[np.nan, 0.5], [np.nan, 1]]),
        ],
    )
    def test_features_that_a_libsvm_row_leaves_out_are_missing(
        self, tmp_path: Path, body: bytes, rows: list[list[float]]
    ) -> None:
        contract, booster = self.algorithm(tmp_path)

        reply = invoke(contract, body, "text/libsvm", CSV)

        scores = [float(line) for line in reply.body.splitlines()]
        np.testing.assert_allclose(scores, self.expected(booster, rows), rtol=1e-5)

    def test_the_algorithm_answers_csv_json_and_json_lines(self, tmp_path: Path) -> None:
        contract, booster = self.algorithm(tmp_path)
        scores = self.expected(booster, [[1.0, 0.0], [0.0, 1.0]]).tolist()

        assert invoke(contract, b"1,0\n0,1\n", CSV).body.decode() == "".join(f"{score}\n" for score in scores)
        assert invoke(contract, b"1,0\n0,1\n", CSV, JSON).json == {
            "predictions": [{"score": score} for score in scores]
        }
        lines = invoke(contract, b"1,0\n0,1\n", CSV, "application/jsonlines").body.splitlines()
        assert [json.loads(line) for line in lines] == [{"score": score} for score in scores]

    def test_the_algorithm_answers_a_batch_transform_job_with_a_line_for_each_row(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SAGEMAKER_BATCH", "True")
        contract, booster = self.algorithm(tmp_path)

        body = invoke(contract, b"1,0", CSV, JSON).body.decode()

        assert body == f"{self.expected(booster, [[1.0, 0.0]]).tolist()[0]}\n"
        assert call(contract, b"", path="/execution-parameters")[0].json["BatchStrategy"] == "MULTI_RECORD"

    @pytest.mark.parametrize(
        ("body", "content_type", "accept", "status", "text"),
        [
            (b"", CSV, CSV, 204, ""),
            (b"1,0", "image/png", CSV, 415, "image/png is not an accepted ContentType: "),
            (b"1,x", CSV, CSV, 415, "Loading csv data failed with Exception, please ensure data is in csv format:\n"),
            (
                b"1,0",
                CSV,
                "image/png",
                406,
                "Accept type image/png is not supported. Please use supported accept types: ",
            ),
        ],
    )
    def test_the_algorithm_refuses_by_status(
        self, tmp_path: Path, body: bytes, content_type: str, accept: str, status: int, text: str
    ) -> None:
        contract, _ = self.algorithm(tmp_path)

        reply = invoke(contract, body, content_type, accept)

        assert reply.status == status
        assert reply.body.decode().startswith(text)

    def test_a_pickle_counts_the_columns(self, tmp_path: Path) -> None:
        (tmp_path / "xgboost-model").write_bytes(pickle.dumps(self.train()))
        contract = load(tmp_path, "xgboost", entry="")

        reply = invoke(contract, b"1,0,5,6", CSV)

        assert reply.status == 400
        assert reply.body == (
            b"Unable to evaluate payload provided: Feature size of csv inference data 4 is not consistent "
            b"with feature size of trained model 2."
        )

    def test_several_boosters_are_an_ensemble(self, tmp_path: Path) -> None:
        boosters = [self.train(max_depth=1), self.train(max_depth=2, eta=0.9)]
        for index, booster in enumerate(boosters):
            booster.save_model(tmp_path / f"{index}.json")
        contract = load(tmp_path, "xgboost", entry="")

        reply = invoke(contract, b"1,0", CSV, JSON)

        mean = np.mean([self.expected(booster, [[1.0, 0.0]]) for booster in boosters], axis=0)
        np.testing.assert_allclose(reply.json["predictions"][0]["score"], mean[0], rtol=1e-5)

    def test_a_folder_without_a_booster_is_told(self, tmp_path: Path) -> None:
        pytest.importorskip("xgboost")
        (tmp_path / "notes.txt").write_text("no model")

        with pytest.raises(LoadFailed, match=r"^Unable to load model: Model .*notes\.txt cannot be loaded"):
            load(tmp_path, "xgboost", entry="")

    @pytest.mark.parametrize(
        ("params", "keys", "expected"),
        [
            ({}, "predicted_label,labels,probabilities", {"predicted_label": 1, "labels": [0, 1]}),
            ({"objective": "multi:softprob", "num_class": 3}, "predicted_label, labels", {"labels": [0, 1, 2]}),
        ],
    )
    def test_the_outputs_that_the_endpoint_names_are_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], keys: str, expected: Any
    ) -> None:
        monkeypatch.setenv("SAGEMAKER_INFERENCE_OUTPUT", keys)
        contract, booster = self.algorithm(tmp_path, **params)

        (prediction,) = invoke(contract, b"1,0", CSV, JSON).json["predictions"]

        assert list(prediction) == keys.replace(" ", "").split(",")
        assert prediction.items() >= expected.items()
        if "probabilities" in prediction:
            score = self.expected(booster, [[1.0, 0.0]])[0]
            np.testing.assert_allclose(prediction["probabilities"], [1 - score, score], rtol=1e-5)
        assert b"," in invoke(contract, b"1,0", CSV, CSV).body

    def test_recordio_goes_both_ways(self, tmp_path: Path) -> None:
        from headrace_handler.contracts.sagemaker import recordio

        contract, booster = self.algorithm(tmp_path)
        rows = np.array([[1.0, 0.0], [0.0, 1.0]])

        reply = invoke(contract, recordio.write_matrix(rows), *["application/x-recordio-protobuf"] * 2)

        told = [label["score"].values[0] for _, label in recordio.read_records(reply.body)]
        np.testing.assert_allclose(told, self.expected(booster, rows), rtol=1e-5)
