"""The image `huggingface-pytorch-inference`, with real models."""

import json
from pathlib import Path

import pytest
import tokenizers

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.sagemaker_models import (
    CSV,
    JSON,
    invoke,
    load,
    load_program,
    write_program,
)
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.usefixtures("sagemaker_imports")


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

    def test_a_task_that_transformers_does_not_have_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("transformers")
        monkeypatch.setenv("HF_TASK", "mind-reading")

        with pytest.raises(
            LoadFailed, match=r"HF_TASK is mind-reading, which transformers .* expected one of .*fill-mask"
        ):
            load(tmp_path, "huggingface", entry="")


class TestQuestionAnswering:
    """The task `question-answering`, on a network that points at chosen words."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        transformers = pytest.importorskip("transformers")
        torch = pytest.importorskip("torch")
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "she", "lives", "in", "par", "##is", "now"]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
        tokenizer.save_pretrained(tmp_path)
        config = transformers.BertConfig(
            vocab_size=len(words), hidden_size=12, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
        model = transformers.BertForQuestionAnswering(config)
        with torch.no_grad():  # the state of a token is its word, and "par" begins and ends every answer
            for parameter in model.parameters():
                parameter.zero_()
            model.bert.embeddings.word_embeddings.weight.copy_(torch.eye(len(words)))
            for layer in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
                layer.weight.fill_(1.0)
            model.qa_outputs.weight[:, words.index("par")] = 4.0
        model.save_pretrained(tmp_path)
        return tmp_path

    def test_the_likeliest_words_of_the_context_are_the_answer(self, folder: Path) -> None:
        contract = load(folder, "huggingface", entry="")
        inputs = {"question": "where she lives", "context": "She lives in Paris now"}

        (by_json,) = (invoke(contract, json.dumps({"inputs": inputs}).encode(), JSON).json,)
        by_csv = invoke(contract, b"question,context\r\nwhere she lives,she lives in paris", CSV).json
        two = invoke(contract, json.dumps({"inputs": inputs, "parameters": {"top_k": 2}}).encode(), JSON).json

        assert {name: by_json[name] for name in ("start", "end", "answer")} == {
            "start": 13,
            "end": 18,
            "answer": "Paris",
        }
        assert 0 < by_json["score"] <= 1
        assert by_csv["answer"] == "paris"
        assert two[0] == by_json
        assert two[0]["score"] >= two[1]["score"]

    def test_a_long_context_is_read_in_windows(self, folder: Path) -> None:
        contract = load(folder, "huggingface", entry="")
        context = "now " * 60 + "in Paris"
        body = {"inputs": {"question": "where", "context": context}, "parameters": {"max_seq_len": 16}}

        found = invoke(contract, json.dumps(body).encode(), JSON).json

        assert (found["answer"], found["end"]) == ("Paris", len(context))

    def test_the_windows_of_a_long_context_are_read_a_few_at_a_time(self, folder: Path) -> None:
        torch = pytest.importorskip("torch")
        contract = load(folder, "huggingface", entry="")
        sizes: list[int] = []

        def note(_module: object, _inputs: object, output: object) -> None:
            if hasattr(output, "start_logits"):
                sizes.append(len(output.start_logits))

        def ask(context: str) -> dict[str, float]:
            body = {"inputs": {"question": "where", "context": context}, "parameters": {"max_seq_len": 16}}
            found: dict[str, float] = invoke(contract, json.dumps(body).encode(), JSON).json
            return found

        hook = torch.nn.modules.module.register_module_forward_hook(note)
        try:
            short, long = ask("now " * 8 + "in Paris"), ask("now " * 80 + "in Paris")
        finally:
            hook.remove()
        assert sizes[0] == 1
        assert len(sizes) > 2
        assert max(sizes) == 8
        assert long["answer"] == short["answer"] == "Paris"
        assert long["start"] == short["start"] + 72 * len("now ")

    def test_an_input_without_a_context_is_a_bad_request(self, folder: Path) -> None:
        contract = load(folder, "huggingface", entry="")

        failed = invoke(contract, b'{"inputs": {"question": "where"}}', JSON)
        other = invoke(contract, b'{"inputs": "where"}', JSON)

        assert (failed.status, failed.json["message"]) == (400, "`context` is None; expected text that is not empty.")
        assert (other.status, "expected an object" in other.json["message"]) == (400, True)
