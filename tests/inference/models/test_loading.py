import json
from dataclasses import replace

import pytest

from headrace.core.errors import BrokenModel, SettingsError, UnsupportedModel
from headrace.core.generation import ChatPrompt
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_templates
from headrace.inference.models.loading import load_hf_model, load_model
from headrace.inference.models.places import gguf_name
from headrace.inference.models.weights import Encoding, as_float32
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_gguf,
)

CHAT = ChatPrompt(messages=[{"role": "user", "content": "Hi"}])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as transformers saves it, in several shards."""

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.temperature = 0.6
    model.generation_config.top_k = 40
    model.generation_config.do_sample = True
    model.save_pretrained(folder, max_shard_size="20KB")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(), bos_token="<s>", eos_token="</s>", chat_template="{{ bos_token }}hello"
    )
    tokenizer.save_pretrained(folder)
    return folder, model


def test_a_folder_that_transformers_saved_is_read_whole(saved):
    folder, original = saved
    assert (folder / "model.safetensors.index.json").exists()

    model = load_model(str(folder))
    assert (model.name, model.path, model.revision) == ("tiny-llama", folder, None)
    assert (model.spec.num_layers, model.spec.vocab_size, model.spec.max_positions) == (2, 320, 128)
    assert model.tokenizer.eos_token_ids == model.defaults.eos_token_ids == {1}
    sampling = model.defaults.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 40, None)
    assert model.chat_template.render(CHAT) == "<s>hello"
    raw = model.weights.load("layers.1.down")
    expected = original.model.layers[1].mlp.down_proj.weight.float().detach().numpy()
    assert raw.encoding is Encoding.BF16
    assert (as_float32(raw.data, raw.encoding) == expected).all()


def tiny_gguf(path, **metadata):
    _, spec = from_config(Fields(TINY_LLAMA, "config.json"))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    values = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer()) | metadata
    return write_gguf(path, values, tensors)


def test_a_gguf_file_is_read_whole(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": "{{ eos_token }}"})

    model = load_model(str(path))
    assert (model.name, model.path) == ("tiny", path)
    assert model.defaults.eos_token_ids == {1}
    assert model.tokenizer.decode(model.tokenizer.encode("The quick fox")) == "The quick fox"
    assert model.chat_template.render(CHAT) == "</s>"


CARD = {"general.basename": "smollm2", "general.size_label": "135M", "general.finetune": "instruct"}


def test_sampling_defaults_come_from_the_chosen_source(saved, tmp_path):
    folder, _ = saved
    own = tmp_path / "own"
    own.mkdir()
    (own / "generation_config.json").write_text('{"min_p": 0.1, "max_new_tokens": 32}')

    def sampling(**options):
        return load_model(str(folder), **options).defaults.sampling

    assert (sampling().temperature, sampling().source) == (0.6, "generation_config.json")
    assert sampling(generation_config="vllm") == SamplingDefaults()
    source = f"{own}/generation_config.json"
    expected = SamplingDefaults(min_p=0.1, max_new_tokens=32, source=source)
    assert sampling(generation_config=str(own)) == expected
    assert load_hf_model(str(folder), generation_config=str(own)).defaults.sampling == expected
    with pytest.raises(SettingsError, match="expected auto, vllm or a folder with"):
        sampling(generation_config=str(tmp_path))


def test_a_gguf_file_has_the_sampling_of_its_metadata_or_else_of_its_model_card(tmp_path):
    path = str(tiny_gguf(tmp_path / "known.gguf", **CARD))
    sampling = load_model(path).defaults.sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.2, 0.9, 1.1)
    assert load_model(path, generation_config="vllm").defaults.sampling == SamplingDefaults()

    path = str(tiny_gguf(tmp_path / "own.gguf", **CARD, **{"general.sampling.min_p": 0.05}))
    expected = SamplingDefaults(min_p=0.05, source="the GGUF file's metadata")
    assert load_model(path).defaults.sampling == replace(expected, min_p=pytest.approx(0.05))


def test_a_model_without_a_chat_template_has_none_unless_one_is_given(tmp_path):
    path = str(tiny_gguf(tmp_path / "tiny.gguf"))

    assert load_model(path).chat_template is None
    assert load_model(path, chat_template="llama2").chat_template.render(CHAT) == "<s>[INST] Hi [/INST]"
    with pytest.raises(SettingsError, match="chat template"):
        load_model(path, chat_template="no-such")


def test_llama_2_gets_its_own_template_when_it_has_none(tmp_path):
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"t{index}" for index in range(31997))],
        "tokenizer.ggml.scores": [0.0] * 32000,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * 31997,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    _, spec = from_config(Fields(TINY_LLAMA | {"vocab_size": 32000}, "config.json"))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    path = write_gguf(tmp_path / "chat.gguf", gguf_metadata(spec) | vocabulary, tensors)

    assert load_model(str(path)).chat_template.render(CHAT) == "<s>[INST] Hi [/INST]"


def copied(folder, target):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_defaults_that_are_off_or_unusable_refuse_no_model(saved, tmp_path):
    folder = copied(saved[0], tmp_path / "off")
    off = {"bos_token_id": -1, "eos_token_id": [-1, 7.0, "end"], "pad_token_id": -1}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **off}))
    generation = {**off, "do_sample": False, "temperature": "hot", "top_k": -1, "top_p": 0, "max_new_tokens": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    defaults = load_model(str(folder)).defaults
    assert defaults.sampling.values() == {"top_k": 0}
    assert 7 in defaults.eos_token_ids
    assert min(defaults.eos_token_ids) >= 0


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("config.json", "{", r"config\.json is not valid JSON"),
        ("config.json", "[]", r"config\.json must contain a JSON object"),
        ("config.json", b"\xff\xfe", r"config\.json cannot be read"),
        ("generation_config.json", "[]", r"generation_config\.json must contain a JSON object"),
        ("tokenizer.json", "{}", r"tokenizer\.json cannot be read"),
    ],
)
def test_a_malformed_file_is_named(saved, tmp_path, name, content, named):
    folder = copied(saved[0], tmp_path / "broken")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(BrokenModel, match=named):
        load_model(str(folder))


def test_a_missing_tokenizer_is_named(saved, tmp_path):
    folder = copied(saved[0], tmp_path / "broken")
    (folder / "tokenizer.json").unlink()

    with pytest.raises(BrokenModel, match=r"tokenizer\.json"):
        load_model(str(folder))


def test_templates_are_found_in_every_place_where_checkpoints_keep_them(saved, tmp_path):
    folder = copied(saved[0], tmp_path / "templates")
    (folder / "chat_template.jinja").unlink(missing_ok=True)

    def write(name, value):
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        target = folder / name
        target.write_text(json.dumps(settings | value) if name == "tokenizer_config.json" else value)

    write("tokenizer_config.json", {"chat_template": "one"})
    assert load_model(str(folder)).chat_template.render(CHAT) == "one"
    write("tokenizer_config.json", {"chat_template": [{"name": "default", "template": "several"}]})
    assert load_model(str(folder)).chat_template.render(CHAT) == "several"
    write("chat_template.json", '{"chat_template": "older"}')
    assert load_model(str(folder)).chat_template.render(CHAT) == "older"
    write("chat_template.jinja", "newest")
    assert load_model(str(folder)).chat_template.render(CHAT) == "newest"


def test_a_network_that_is_not_native_has_its_config_tokenizer_and_template_read(tmp_path):
    from transformers import GPTBigCodeConfig, PreTrainedTokenizerFast

    folder = tmp_path / "coder"
    GPTBigCodeConfig(vocab_size=320, n_positions=64, architectures=["GPTBigCodeForCausalLM"]).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(), eos_token="</s>", chat_template="{{ eos_token }}hello"
    ).save_pretrained(folder)
    with pytest.raises(UnsupportedModel, match="gpt_bigcode"):
        load_model(str(folder))

    model = load_hf_model(str(folder))

    assert (model.name, model.model_type, model.architecture) == ("coder", "gpt_bigcode", "GPTBigCodeForCausalLM")
    assert (model.vocab_size, model.max_positions) == (320, 64)
    assert model.tokenizer.eos_token_ids == model.defaults.eos_token_ids
    assert model.chat_template is not None
    assert model.chat_template.render(CHAT) == "</s>hello"


def test_a_gguf_file_is_for_the_native_backend_only(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModel, match="--backend native"):
        load_hf_model(str(path))


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"chat_template.jinja": "a", "tokenizer_config.json": {"chat_template": "b"}}, {"default": "a"}),
        (
            {"chat_template.json": {"chat_template": "a"}, "tokenizer_config.json": {"chat_template": "b"}},
            {"default": "a"},
        ),
        (
            {"tokenizer_config.json": {"chat_template": "b"}, "processor_config.json": {"chat_template": "c"}},
            {"default": "b"},
        ),
        ({"processor_config.json": {"chat_template": "c"}}, {"default": "c"}),
        (
            {"chat_template.jinja": "a", "additional_chat_templates/tool_use.jinja": "t"},
            {"default": "a", "tool_use": "t"},
        ),
        (
            {
                "tokenizer_config.json": {"chat_template": [{"name": "default", "template": "b"}]},
                "additional_chat_templates/tool_use.jinja": "t",
            },
            {"default": "b", "tool_use": "t"},
        ),
        (
            {"additional_chat_templates/tool_use.jinja": "t", "additional_chat_templates/._tool_use.jinja": "x"},
            {"tool_use": "t"},
        ),
    ],
)
def test_chat_templates_are_read_from_every_file_that_may_hold_them(files, templates, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) if "tokenizer_config.json" in files else {}
    assert read_templates(tmp_path, Fields(settings, "tokenizer_config.json")) == templates
