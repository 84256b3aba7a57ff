"""The images of SageMaker by framework, with real models of scikit-learn, XGBoost, PyTorch and transformers."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from headrace_handler.contract import Contract, LoadFailed
from tests.headrace_handler.sagemaker_models import load, load_program, write_program
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import RecordingReply, call

pytestmark = pytest.mark.usefixtures("sagemaker_imports")

JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"
SERVER_ERROR = (
    b"<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>\n"
    b"<p>The server encountered an internal error and was unable to complete your request. Either the server is "
    b"overloaded or there is an error in the application.</p>\n"
)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def invoke(contract: Contract, body: bytes, content_type: str, accept: str = "*/*") -> RecordingReply:
    return call(contract, body, content_type=content_type, headers=[("Accept", accept)])[0]


class TestScikitLearn:
    """`sagemaker-scikit-learn`: `model_fn` loads a pickle, all else is the image's."""

    CODE = """
        import os, joblib
        def model_fn(model_dir): return joblib.load(os.path.join(model_dir, "model.joblib"))
    """

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        joblib = pytest.importorskip("joblib")
        linear = pytest.importorskip("sklearn.linear_model")
        model = linear.LinearRegression().fit([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.0, 1.0, 2.0])
        joblib.dump(model, tmp_path / "model.joblib")
        return tmp_path

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            (JSON, b"[[1, 0], [0, 1]]"),
            (CSV, b"1,0\n0,1\n"),
            ("text/csv; charset=utf-8", b"1,0\n0,1\n"),
            (NPY, npy([[1.0, 0.0], [0.0, 1.0]])),
        ],
    )
    def test_rows_of_each_type_are_predicted(self, folder: Path, content_type: str, body: bytes) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), body, content_type)

        assert (reply.status, reply.header("Content-Type")) == (200, JSON)
        np.testing.assert_allclose(reply.json, [1.0, 2.0], atol=1e-6)

    def test_predictions_are_written_in_each_type(self, folder: Path) -> None:
        contract = load_program(folder, self.CODE, "sklearn")

        text, binary = (invoke(contract, b"1,0\n0,1", CSV, accept) for accept in (CSV, NPY))

        assert text.header("Content-Type") == "text/csv; charset=utf-8"
        np.testing.assert_allclose([float(line) for line in text.body.splitlines()], [1.0, 2.0], atol=1e-6)
        assert binary.header("Content-Type") == NPY
        np.testing.assert_allclose(np.load(io.BytesIO(binary.body)), [1.0, 2.0], atol=1e-6)

    def test_a_single_row_of_csv_is_a_row(self, folder: Path) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"0,1\n", CSV)

        np.testing.assert_allclose(reply.json, [2.0], atol=1e-6)

    @pytest.mark.parametrize(("content_type", "accept", "status"), [("image/png", JSON, 415), (CSV, "image/png", 406)])
    def test_a_type_that_is_not_supported_is_told_as_json(
        self, folder: Path, content_type: str, accept: str, status: int
    ) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"1,0", content_type, accept)

        assert (reply.status, reply.header("Content-Type")) == (status, JSON)
        assert list(reply.json) == ["error", "error-message", "stack-trace"]
        assert reply.json["error"] == "UnsupportedFormatError"
        assert reply.json["error-message"].startswith("Content type image/png is not supported by this framework.")

    def test_any_other_failure_is_the_page_of_the_web_framework(self, folder: Path) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"1,2,3", CSV)  # one column too many

        assert (reply.status, reply.header("Content-Type")) == (500, "text/html; charset=utf-8")
        assert reply.body == SERVER_ERROR

    @pytest.mark.parametrize(
        ("returned", "status", "content_type", "body"),
        [
            ("'text'", 200, "text/html; charset=utf-8", b"text"),
            ("('a,b', 'text/csv')", 200, "text/csv; charset=utf-8", b"a,b"),
            ("{'b': 1, 'a': [2]}", 200, JSON, b'{"a":[2],"b":1}\n'),
            ("worker.Response('x', status=418, mimetype='text/x-own')", 418, "text/x-own; charset=utf-8", b"x"),
            ("(piece for piece in ['x', 'y'])", 200, "text/plain", b"xy"),
            ("object()", 500, "text/html; charset=utf-8", SERVER_ERROR),
        ],
    )
    def test_what_a_function_returns_is_answered_as_the_web_framework_does(
        self, tmp_path: Path, returned: str, status: int, content_type: str, body: bytes
    ) -> None:
        code = f"""
            from sagemaker_containers.beta.framework import worker
            def model_fn(model_dir): return None
            def transform_fn(model, data, content_type, accept): return {returned}
        """

        reply = invoke(load_program(tmp_path, code, "sklearn"), b"", JSON, "text/plain")

        assert (reply.status, reply.header("Content-Type"), reply.body) == (status, content_type, body)

    def test_a_parameter_with_a_default_is_no_context(self, tmp_path: Path) -> None:
        code = """
            def model_fn(model_dir): return None
            def predict_fn(data, model, threshold=0.5): return [threshold]
        """

        assert invoke(load_program(tmp_path, code, "sklearn"), b"[1]", JSON).json == [0.5]

    def test_a_request_without_a_type_is_json(self, tmp_path: Path) -> None:
        contract = load_program(
            tmp_path, "def model_fn(d): return 1\ndef predict_fn(data, model): return data", "sklearn"
        )

        assert call(contract, b"[1.5]")[0].json == [1.5]

    def test_batch_transform_gets_the_parameters_of_the_program(self, tmp_path: Path) -> None:
        code = "def model_fn(d): return 1\ndef execution_parameters_fn(): return {'MaxPayloadInMB': 6}"

        (reply,) = call(load_program(tmp_path, code, "sklearn"), b"", path="/execution-parameters")

        assert (reply.status, reply.json) == (200, {"MaxPayloadInMB": 6})

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("x = 1", "Please provide a model_fn implementation"),
            (
                "def model_fn(d): pass\ndef transform_fn(a, b, c, d): pass\ndef input_fn(a, b): pass",
                "Cannot use transform_fn implementation with input_fn, predict_fn, and/or output_fn",
            ),
            ("def model_fn(d): pass\ndef predict_fn(a): pass", "too many positional arguments"),
        ],
    )
    def test_code_that_cannot_serve_fails_before_the_first_request(
        self, tmp_path: Path, code: str, message: str
    ) -> None:
        with pytest.raises(LoadFailed, match=message):
            load_program(tmp_path, code, "sklearn")


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


class TestPyTorch:
    """`pytorch-inference`: TorchScript is served without code."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        with pytest.warns(DeprecationWarning, match="torch.jit"):
            torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "net.pth")
        return tmp_path

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_the_default_functions_serve_torchscript(self, folder: Path) -> None:
        torch = pytest.importorskip("torch")
        expected = torch.jit.load(folder / "net.pth")(torch.tensor([[1.0, 2.0], [3.0, 4.5]])).tolist()
        contract = load(folder, "pytorch", entry="")

        bodies = [
            (b"[[1, 2], [3, 4.5]]", JSON),
            (b"1,2\n3,4.5\n", CSV),
            (npy(np.array([[1, 2], [3, 4.5]], np.float32)), NPY),
        ]
        for body, content_type in bodies:
            reply = invoke(contract, body, content_type)
            assert reply.status == 200, reply.body
            np.testing.assert_allclose(reply.json, expected, rtol=1e-5)
        np.testing.assert_allclose(np.load(io.BytesIO(invoke(contract, *bodies[0], NPY).body)), expected, rtol=1e-5)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_files_that_are_no_single_model_fail_when_they_are_loaded(self, folder: Path) -> None:
        (folder / "b.pt").write_bytes(b"junk")

        with pytest.raises(LoadFailed) as failed:
            load(folder, "pytorch", entry="")
        assert failed.value.message == (
            "ValueError: Exactly one .pth or .pt file is required for PyTorch models: ['b.pt', 'net.pth']"
        )
        (folder / "net.pth").unlink()
        with pytest.raises(LoadFailed, match="Please ensure model is saved using torchscript"):
            load(folder, "pytorch", entry="")

    def test_a_state_dict_with_a_class_of_its_program_is_served_once_loaded(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 26 * 26, 10))
        torch.save(net.state_dict(), tmp_path / "torch_model.pth")
        code = """
            import os, torch
            loads = []

            class Net(torch.nn.Sequential):
                def __init__(self):
                    super().__init__(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 26 * 26, 10))

            def model_fn(model_dir, context):
                loads.append(context.system_properties["gpu_id"])
                assert len(loads) == 1
                net = Net()
                net.load_state_dict(torch.load(os.path.join(model_dir, "torch_model.pth")))
                return net
        """
        contract = load_program(tmp_path, code, "pytorch")
        image = np.random.default_rng(0).random((1, 1, 28, 28)).astype(np.float32)
        expected = net(torch.from_numpy(image)).tolist()

        for _ in range(2):
            np.testing.assert_allclose(invoke(contract, npy(image), NPY).json, expected, rtol=1e-4)


class TestHuggingFace:
    """`huggingface-pytorch-inference`: functions of the program, or a pipeline."""

    @pytest.mark.parametrize("context", ["", ", context=None"])
    def test_three_functions_with_and_without_a_context(self, tmp_path: Path, context: str) -> None:
        code = f"""
            def model_fn(model_dir{context}): return "model"
            def input_fn(data, content_type{context}): return "data"
            def predict_fn(data, model{context}): return "output"
            def output_fn(prediction, accept{context}): return prediction
        """

        reply = invoke(load_program(tmp_path, code, "huggingface"), b"", JSON)

        assert (reply.status, reply.header("Content-Type"), reply.body) == (200, JSON, b"output")

    @pytest.mark.parametrize("context", ["", ", context=None"])
    def test_a_transform_function_in_a_program_of_another_name(self, tmp_path: Path, context: str) -> None:
        entry = write_program(
            tmp_path,
            f"def model_fn(a{context}): return 'm'\ndef transform_fn(a, b, c, d{context}): return f'output {{b}}'",
            "code/inference_tranform_fn.py",
        )

        assert invoke(load(tmp_path, "huggingface", entry), b"dummy", JSON).body == b"output dummy"

    def test_a_pair_is_a_list_as_in_the_image(self, tmp_path: Path) -> None:
        code = "def model_fn(d): return 1\ndef transform_fn(a, b, c, d): return 'x', 'text/plain'"

        reply = invoke(load_program(tmp_path, code, "huggingface"), b"", JSON)

        assert (reply.json, reply.header("Content-Type")) == (["x", "text/plain"], JSON)

    def test_every_failure_is_a_bad_request_in_the_java_servers_words(self, tmp_path: Path) -> None:
        code = "def model_fn(d): return 1\ndef predict_fn(data, model): raise KeyError('a<b')"

        reply = invoke(load_program(tmp_path, code, "huggingface"), b"{}", JSON)

        assert (reply.status, reply.header("Content-Type")) == (400, JSON)
        assert reply.body == (
            b'{\n  "code": 400,\n  "type": "InternalServerException",\n  "message": "\\u0027a\\u003cb\\u0027"\n}\n'
        )

    def test_inputs_and_parameters_become_arguments(self, tmp_path: Path) -> None:
        code = "def model_fn(d): return lambda inputs, **parameters: [inputs, parameters]"
        contract = load_program(tmp_path, code, "huggingface")

        assert invoke(contract, b'{"inputs": "a", "parameters": {"k": 1}}', JSON).body == b'["a",{"k":1}]'
        assert invoke(contract, b'{"question": "q"}', JSON).body == b'[{"question":"q"},{}]'
        assert invoke(contract, b"inputs\r\na\r\nb", CSV).json == [["a", "b"], {}]

    def test_a_folder_without_a_task_is_told_what_it_needs(self, tmp_path: Path) -> None:
        with pytest.raises(LoadFailed, match=r"You need to define one of the following .* as env 'HF_TASK'"):
            load(tmp_path, "huggingface", entry="")

    @pytest.mark.parametrize(
        ("architecture", "task"),
        [
            ("BertForSequenceClassification", "text-classification"),
            ("TapasForQuestionAnswering", "table-question-answering"),
            ("GPT2LMHeadModel", "text-generation"),
            ("T5ForConditionalGeneration", "text2text-generation"),
        ],
    )
    def test_the_architecture_tells_the_task(self, architecture: str, task: str) -> None:
        from headrace_handler.contracts.sagemaker.pipelines import infer_task_of_architecture

        assert infer_task_of_architecture(architecture) == task
        with pytest.raises(ValueError, match="Task couldn't be inferenced from Own"):
            infer_task_of_architecture("Own")

    def test_a_checkpoint_is_served_by_the_pipeline_of_its_task(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad")
        transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
        config = transformers.BertConfig(
            vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
        )
        transformers.set_seed(0)
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
        contract = load(tmp_path, "huggingface", entry="")

        by_json = invoke(contract, b'{"inputs": ["good", "bad bad"], "parameters": {"top_k": null}}', JSON)
        by_csv = invoke(contract, b"inputs\r\ngood", CSV, CSV)
        failed = invoke(contract, b"good", "text/plain")

        assert [sorted(score["label"] for score in scores) for scores in by_json.json] == [["LABEL_0", "LABEL_1"]] * 2
        assert all(abs(sum(score["score"] for score in scores) - 1) < 1e-5 for scores in by_json.json)
        assert by_csv.body.decode().startswith("label,score\r\nLABEL_")
        assert failed.status == 400
        assert failed.json["message"].startswith("Content type text/plain is not supported by this framework.")

    @pytest.mark.parametrize(
        ("task", "key"),
        [("", "generated_text"), ("summarization", "summary_text"), ("translation_en_to_de", "translation_text")],
    )
    def test_encoder_decoders_answer_as_the_pipelines_of_transformers_4(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, key: str
    ) -> None:
        transformers = pytest.importorskip("transformers")
        words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "short": 3, "words": 4, "say:": 5}
        plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        )
        tokenizer.save_pretrained(tmp_path)
        config = transformers.T5Config(
            vocab_size=6, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
        transformers.set_seed(0)
        model = transformers.T5ForConditionalGeneration(config).eval()
        model.save_pretrained(tmp_path)
        parameters = {"max_new_tokens": 4, "suppress_tokens": [0, 1, 2]}  # words only: else the text may be empty
        ids = model.generate(tokenizer("say: words", return_tensors="pt").input_ids, **parameters)
        expected = {key: tokenizer.decode(ids[0], skip_special_tokens=True)}
        assert expected[key]
        monkeypatch.setenv("HF_TASK", task)

        contract = load(tmp_path, "huggingface", entry="")

        for inputs in ("say: words", ["say: words"]):
            body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
            assert invoke(contract, body, JSON).json == [expected]
