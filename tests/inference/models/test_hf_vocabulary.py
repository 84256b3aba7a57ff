"""Folders with the vocabulary files of older transformers give the tokens of transformers."""

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_text_parts
from headrace.inference.models.tokenizer import Tokenizer as OurTokenizer
from tests.inference.models.model_files import CORPUS, byte_level_tokenizer, vocabulary

TEXTS = st.lists(
    st.text(st.sampled_from("abcXYZ 0123456789\n\t'.,!?$+<éüßдж日本🦊\u0301"), max_size=20)
    | st.sampled_from([*" ".join(CORPUS).split(), "<s>", "</s>", "<|endoftext|>", "[SEP]", "<new>", "#", "##a"])
).map("".join)
BYTE_LEVEL = {
    "GPT2Tokenizer": "<|endoftext|>",
    "CodeGenTokenizer": "<|endoftext|>",
    "GPTNeoXTokenizer": "<|endoftext|>",
    "Qwen2Tokenizer": "<|endoftext|>",
    "RobertaTokenizer": "<s> <pad> </s> <unk> <mask>",
    "BartTokenizer": "<s> <pad> </s> <unk> <mask>",
    "LongformerTokenizer": "<s> <pad> </s> <unk> <mask>",
    "LEDTokenizer": "<s> <pad> </s> <unk> <mask>",
}
WORDPIECE = {
    "BertTokenizer": "[PAD] [UNK] [CLS] [SEP] [MASK]",
    "DistilBertTokenizer": "[PAD] [UNK] [CLS] [SEP] [MASK]",
    "ElectraTokenizer": "[PAD] [UNK] [CLS] [SEP] [MASK]",
    "MobileBertTokenizer": "[PAD] [UNK] [CLS] [SEP] [MASK]",
    "MPNetTokenizer": "<s> <pad> </s> [UNK] <mask>",
}


def byte_level_folder(folder: Path, special: str, **config: object) -> Path:
    tokens, merges = vocabulary(byte_level_tokenizer(500))
    tokens = [*special.split(), *tokens[2:]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": len(tokens)}))
    return folder


def wordpiece_folder(folder: Path, special: str, **config: object) -> Path:
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special.split(), show_progress=False)
    trained.train_from_iterator([text for line in CORPUS for text in (line, line.lower())], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary_of(trained)))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def vocabulary_of(trained: Tokenizer) -> list[str]:
    vocab = trained.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def read(folder: Path, **config: object) -> OurTokenizer:
    return read_text_parts(folder, Fields(config, "config.json"), vocab_size=1000).tokenizer


def same_ids(ours: OurTokenizer, theirs: transformers.PreTrainedTokenizerFast) -> None:
    @settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(TEXTS)
    def compare(text):
        assert ours.encode(text) == theirs(text)["input_ids"]

    compare()


@pytest.mark.parametrize("name", BYTE_LEVEL)
@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True}])
def test_vocab_json_and_merges_give_the_tokens_of_the_class(name, options, tmp_path):
    folder = byte_level_folder(tmp_path, BYTE_LEVEL[name], tokenizer_class=name, **options)
    if name == "Qwen2Tokenizer" and options:  # the class would put a space before each word
        with pytest.raises(UnsupportedModel, match="add_prefix_space is true"):
            read(folder)
        return
    same_ids(read(folder), getattr(transformers, name).from_pretrained(folder))


@pytest.mark.parametrize("name", WORDPIECE)
@pytest.mark.parametrize(
    "options", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}]
)
def test_vocab_txt_gives_the_tokens_of_the_class(name, options, tmp_path):
    folder = wordpiece_folder(tmp_path, WORDPIECE[name], tokenizer_class=f"{name}Fast", **options)
    same_ids(read(folder), getattr(transformers, name).from_pretrained(folder))


@pytest.mark.parametrize(
    ("model_type", "name", "make"),
    [
        ("gpt2", "GPT2Tokenizer", byte_level_folder),
        ("qwen2", "Qwen2Tokenizer", byte_level_folder),
        ("roberta", "RobertaTokenizer", byte_level_folder),
        ("bert", "BertTokenizer", wordpiece_folder),
        ("mpnet", "MPNetTokenizer", wordpiece_folder),
    ],
)
def test_the_type_of_the_model_decides_where_no_file_names_a_class(model_type, name, make, tmp_path):
    folder = make(tmp_path, (BYTE_LEVEL | WORDPIECE)[name])
    (folder / "tokenizer_config.json").unlink()
    same_ids(read(folder, model_type=model_type), getattr(transformers, name).from_pretrained(folder))


def test_special_tokens_map_json_names_the_special_tokens(tmp_path):
    folder = byte_level_folder(tmp_path, "<|endoftext|> <stop>", tokenizer_class="GPT2Tokenizer")
    names = {"eos_token": {"content": "<stop>", "lstrip": True}, "additional_special_tokens": ["<new>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = read(folder)

    assert tokenizer.special_names["eos_token"] == "<stop>"
    assert tokenizer.eos_token_ids == {1}
    assert tokenizer.encode("  <stop><new>") == [1, tokenizer.encode("<new>")[0]]
    assert {0, 1} <= tokenizer.special_ids


@pytest.mark.parametrize(
    ("name", "files", "error", "named"),
    [
        ("CLIPTokenizer", {}, UnsupportedModel, "tokenizer_class is 'CLIPTokenizer'; expected one of GPT2Tokenizer"),
        ("BertTokenizer", {}, UnsupportedModel, "tokenizer_class is 'BertTokenizer'"),
        ("", {}, UnsupportedModel, "no file names a tokenizer_class, and model_type is 'llama'"),
        ("GPT2Tokenizer", {"merges.txt": None}, BrokenModel, r"no merges\.txt"),
        ("GPT2Tokenizer", {"merges.txt": b"a b c\n"}, BrokenModel, "not two pieces"),
        ("GPT2Tokenizer", {"merges.txt": b"\xff"}, BrokenModel, "not UTF-8"),
        ("GPT2Tokenizer", {"merges.txt": b"never seen\n"}, BrokenModel, "cannot be read"),
        ("GPT2Tokenizer", {"vocab.json": b'["a"]'}, BrokenModel, "id of each token"),
        ("GPT2Tokenizer", {"vocab.json": b'{"a": -1}'}, BrokenModel, "id of each token"),
        ("RobertaTokenizer", {"vocab.json": b'{"a": 1}', "merges.txt": b""}, BrokenModel, r"no '<s>' \(cls_token\)"),
    ],
)
def test_vocabularies_that_cannot_be_built_are_refused_and_the_reason_named(name, files, error, named, tmp_path):
    folder = byte_level_folder(tmp_path, "<s> </s> <unk>", **({"tokenizer_class": name} if name else {}))
    for file, content in files.items():
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_bytes(content)
    with pytest.raises(error, match=named):
        read(folder, model_type="llama")


def test_a_vocab_txt_of_another_class_or_without_its_tokens_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="tokenizer_class is 'BertJapaneseTokenizer'"):
        read(wordpiece_folder(tmp_path, "[UNK]", tokenizer_class="BertJapaneseTokenizer"))
    with pytest.raises(BrokenModel, match=r"no '\[CLS\]' \(cls_token\), '\[SEP\]' \(sep_token\)"):
        read(wordpiece_folder(tmp_path, "[UNK]", tokenizer_class="BertTokenizer"))
    folder = wordpiece_folder(tmp_path, WORDPIECE["BertTokenizer"], do_basic_tokenize=False)
    with pytest.raises(UnsupportedModel, match="do_basic_tokenize is false"):
        read(folder, model_type="bert")
