"""The files, the image and the environment of a model decide which code serves it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.handlers.choice import choose
from headrace.serving.handlers.found import Found, find_model
from headrace.serving.handlers.spec import ContractName

HANDLE = "def handle(inputs):\n    return None\n"
FORMATTER = "@output_formatter\ndef f(output): ...\n"
MANIFEST = '{"model": {"modelName": "m", "handler": "h.py", "modelVersion": "1.0"}}'
LLM = {"config.json": "{}", "model.safetensors": ""}


@pytest.fixture
def folder_of(tmp_path):
    def make(files: dict[str, str]) -> Path:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return make


def chosen(folder: Path, env: dict[str, str] | None = None, family: str = ""):
    return choose(find_model(folder, model_name="mine", env=env or {}, family=family))


BOTH = {"model.py": HANDLE, "code/inference.py": "def model_fn(folder): ...", "MAR-INF/MANIFEST.json": MANIFEST}


@pytest.mark.parametrize("contract", ["djl", "sagemaker", "torchserve"])
def test_the_name_of_a_contract_chooses_among_several_programs_and_is_an_error_without_its_own(
    folder_of, contract: ContractName
) -> None:
    folder = folder_of(BOTH)
    assert choose(find_model(folder, model_name="m", env={}), contract).contract == contract
    own = {"djl": "model.py", "sagemaker": "code/inference.py", "torchserve": "MAR-INF/MANIFEST.json"}[contract]
    (folder / own).unlink()
    with pytest.raises(SettingsError, match=f"handler is '{contract}', and m has no code for that contract"):
        choose(find_model(folder, model_name="m", env={}), contract)


@pytest.mark.parametrize(
    ("files", "env", "family", "contract"),
    [
        ({**LLM}, {}, "", None),
        ({**LLM, "model.py": HANDLE}, {}, "", "djl"),
        ({**LLM, "model.py": HANDLE}, {}, "djl", "djl"),
        ({**LLM, "mine.py": HANDLE}, {}, "djl", "djl"),
        ({**LLM, "model.py": "async def handle(inputs): ..."}, {}, "", "djl"),
        ({**LLM, "model.py": "from djl_python.huggingface import handle"}, {}, "", "djl"),
        (
            {**LLM, "model.py": "try:\n    import fast\n    handle = fast.handle\nexcept ImportError:\n    raise"},
            {},
            "",
            "djl",
        ),
        ({**LLM, "model.py": "def handle(:"}, {}, "", "djl"),
        ({**LLM, "model.py": "class Model: ..."}, {}, "", None),  # code of a checkpoint
        ({**LLM, "model.py": "@input_formatter\ndef f(item): ..."}, {}, "djl", "djl"),
        ({"model.py": "@x.init_handler\ndef f(a): ...\n@prediction_handler\ndef g(a): ..."}, {}, "djl", "djl"),
        ({"model.py": "def run(inputs): ...", "serving.properties": "option.handler=run"}, {}, "djl", "djl"),
        ({"app.py": HANDLE, "serving.properties": "option.entryPoint=app.py"}, {}, "djl", "djl"),
        ({"app.py": HANDLE}, {"OPTION_ENTRYPOINT": "app.py"}, "djl", "djl"),
        ({**LLM, "serving.properties": "option.entryPoint=djl_python.huggingface"}, {}, "djl", None),
        ({**LLM, "model.py": HANDLE}, {"DJL_ENTRY_POINT": "djl_python.lmi_vllm.vllm_async_service"}, "djl", None),
        ({"model.joblib": "", "serving.properties": "engine=Python"}, {}, "djl", "djl"),
        ({"MAR-INF/MANIFEST.json": MANIFEST, "h.py": ""}, {}, "", "torchserve"),
        ({"MAR-INF/MANIFEST.json": MANIFEST, "h.py": "", "code/inference.py": ""}, {}, "torchserve", "torchserve"),
        ({"mnist.mar": ""}, {}, "torchserve", "torchserve"),
        ({"model.pth": "", "code/inference.py": ""}, {}, "torchserve", "sagemaker"),
        ({"model.pth": ""}, {"SAGEMAKER_PROGRAM": "train.py"}, "torchserve", "sagemaker"),
        ({"model.pth": ""}, {"SAGEMAKER_PROGRAM": ""}, "torchserve", "sagemaker"),
        ({**LLM}, {"SAGEMAKER_PROGRAM": ""}, "torchserve", None),
        ({"model.joblib": ""}, {"SAGEMAKER_PROGRAM": "inference.py"}, "sklearn", "sagemaker"),
        ({"xgboost-model": ""}, {}, "xgboost", "sagemaker"),
        ({"xgboost-model": ""}, {}, "", "sagemaker"),
        ({"inference.py": "def model_fn(folder): ..."}, {}, "", "sagemaker"),
        ({**LLM, "inference.py": "print('a script of the checkpoint')"}, {}, "", None),
        ({**LLM}, {"HF_TASK": "fill-mask"}, "", "sagemaker"),
        ({"config.json": '{"architectures": ["BertForTokenClassification"]}'}, {}, "transformers", "sagemaker"),
        ({"config.json": '{"architectures": ["BertForTokenClassification"]}'}, {}, "", None),
        (
            {"config.json": '{"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": true}'},
            {},
            "transformers",
            "sagemaker",
        ),
        ({"config.json": '{"architectures": ["BertForSequenceClassification"]}'}, {}, "transformers", None),
        ({"config.json": '["no configuration"]'}, {}, "transformers", None),
        ({**LLM}, {"HF_TASK": "text-generation"}, "", None),
        ({**LLM}, {"HF_TASK": "sentiment-analysis"}, "transformers", None),
        ({**LLM}, {"HF_TASK": "fill-mask"}, "transformers", "sagemaker"),
        ({**LLM}, {"HF_TASK": "text-generation"}, "transformers", None),
        ({**LLM, "code/inference.py": ""}, {"HF_TASK": "text-generation"}, "transformers", "sagemaker"),
        ({**LLM, "inference.py": "def model_fn(model_dir): ..."}, {}, "transformers", "sagemaker"),
        ({"model.joblib": "", "inference.py": "from mine import model_fn"}, {}, "", "sagemaker"),
        ({**LLM, "inference.py": "print('a script of the checkpoint')"}, {}, "transformers", None),
        ({**LLM, "inference.py": "def predict_fn(:"}, {}, "", None),
        ({**LLM, "code/requirements.txt": "a"}, {}, "transformers", None),
        ({"packed/model.py": HANDLE, "packed/serving.properties": ""}, {}, "djl", "djl"),
    ],
)
def test_a_contract_is_chosen_by_files_image_and_environment(folder_of, files, env, family, contract) -> None:
    choice = chosen(folder_of(files), env, family)
    assert choice.contract == contract
    assert choice.reason.endswith(".")


def test_the_setting_native_leaves_code_alone(folder_of) -> None:
    found = find_model(folder_of({"model.py": HANDLE}), model_name="mine", env={})
    assert choose(found, "native").contract is None


def test_the_setting_handler_refuses_a_model_without_code(folder_of) -> None:
    with pytest.raises(SettingsError, match=r"mine has no code to run.*Expected model\.py"):
        choose(find_model(folder_of(LLM), model_name="mine", env={}), "handler")
    found = find_model(folder_of({"model.py": HANDLE}), model_name="mine", env={})
    assert choose(found, "handler").contract == "djl"


def test_the_setting_handler_takes_the_pipeline_of_a_task_that_the_engine_has_too(folder_of) -> None:
    found = find_model(folder_of(LLM), model_name="mine", env={"HF_TASK": "text-generation"})
    assert (choose(found).contract, choose(found, "handler").contract) == (None, "sagemaker")


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"MAR-INF/MANIFEST.json": "{"}, "is not JSON"),
        ({"MAR-INF/MANIFEST.json": "[]"}, "not a JSON object"),
        ({"MAR-INF/MANIFEST.json": '{"model": {"configFile": "../../x.yaml"}}'}, "configFile"),
        ({"model-config.yaml": "a: ["}, "is not YAML"),
        ({"model-config.yaml": "- a"}, "not a mapping"),
        ({"MAR-INF/MANIFEST.json": "[" * 100_000}, "is not JSON"),
    ],
)
def test_files_that_cannot_be_read_are_named(folder_of, files, match) -> None:
    with pytest.raises(SettingsError, match=match):
        find_model(folder_of(files), model_name="mine", env={})


def test_the_configuration_is_the_file_that_the_manifest_names(folder_of) -> None:
    manifest = '{"model": {"configFile": "conf.yaml"}}'
    folder = folder_of({"MAR-INF/MANIFEST.json": manifest, "conf.yaml": "handler: {a: 1}", "model-config.yaml": "b: 2"})
    assert find_model(folder, model_name="mine", env={}).model_config == {"handler": {"a": 1}}


@given(st.text(), st.text())
def test_options_are_read_by_name_in_any_case_before_variables(value, other) -> None:
    found = Found(
        model_name="m", root=Path(), code=Path(), properties={"Option.EntryPoint": value}, env={"A": "", "B": other}
    )
    assert found.option("entrypoint", "A", "B") == (value.strip() or other.strip())


@pytest.mark.parametrize(
    ("submitted", "code"),
    [
        ("", "code"),
        ("/opt/ml/model/code", "code"),
        ("/opt/ml/model/other", "other"),
        ("/opt/ml/model", ""),
        ("/nonexistent", "code"),
    ],
)
def test_the_code_of_toolkits_is_where_it_was_submitted_to(folder_of, submitted, code) -> None:
    folder = folder_of({"code/inference.py": "", "other/inference.py": "", "model.joblib": ""})
    found = find_model(folder, model_name="m", env={"SAGEMAKER_SUBMIT_DIRECTORY": submitted})
    assert found.code == folder / code


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"model.py": FORMATTER}, "model.py"),
        ({"mine.py": FORMATTER, "model.py": HANDLE}, "mine.py"),
        ({"model.py": FORMATTER + HANDLE}, ""),
        ({"model.py": FORMATTER, "model.joblib": ""}, ""),
        ({"model.py": FORMATTER, "serving.properties": "option.entryPoint=djl_python.lmi_vllm"}, "model.py"),
        ({"model.py": FORMATTER, "serving.properties": "option.entryPoint=model.py"}, ""),
    ],
)
def test_a_file_with_formatters_and_no_handler_works_around_the_engine(folder_of, files, expected) -> None:
    assert chosen(folder_of({**LLM, **files})).formatters == expected


def test_formatters_are_no_handler(folder_of) -> None:
    found = find_model(folder_of({**LLM, "model.py": FORMATTER}), model_name="mine", env={})
    with pytest.raises(SettingsError, match=r"model\.py has @output_formatter and no handle"):
        choose(found, "handler")
    assert choose(found, "native").formatters == ""
