"""Embeddings and scores of tiny random checkpoints, served by the native engine, beside those of transformers."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from benchmarks.embeddings.gguf_model import write_gguf
from safetensors.torch import save_file

from headrace.core.errors import SettingsError
from headrace.core.generation import GenerationRequest, PoolingParams, RequestLimits
from headrace.inference.engine.config import EngineConfig, ModelSource
from headrace.inference.engine.loading.assembly import assemble

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "fox", "sky", "yes", "no", "##es", "a", "query"]
TEXTS = ["red fox", "a green sky foxes", "blue", "red green blue " * 20]
BERT = {"num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 200, "vocab_size": 40}
MODERNBERT = {
    "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 100, "vocab_size": 40,
    "max_position_embeddings": 80, "local_attention": 16, "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2),
}  # fmt: skip
KINDS = {
    "bert": (transformers.BertModel, transformers.BertConfig(**BERT, max_position_embeddings=80)),
    "xlm-roberta": (
        transformers.XLMRobertaModel,
        transformers.XLMRobertaConfig(**BERT, max_position_embeddings=82, type_vocab_size=1, layer_norm_eps=1e-5),
    ),
    "modernbert": (transformers.ModernBertModel, transformers.ModernBertConfig(**MODERNBERT)),
    "modernbert with biases": (
        transformers.ModernBertModel,
        transformers.ModernBertConfig(
            **MODERNBERT | {"num_hidden_layers": 1}, attention_bias=True, mlp_bias=True, norm_bias=True,
            hidden_activation="silu", classifier_pooling="mean", classifier_bias=True,
        ),
    ),
    "nomic_bert": (transformers.NomicBertModel, transformers.NomicBertConfig(**BERT, max_position_embeddings=80)),
    "embeddinggemma": (
        transformers.Gemma3TextModel,
        transformers.Gemma3TextConfig(
            hidden_size=80, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=48,
            intermediate_size=100, vocab_size=40, max_position_embeddings=96, query_pre_attn_scalar=48,
            sliding_window=20, sliding_window_pattern=3, use_bidirectional_attention=True,
        ),
    ),
    "qwen3": (
        transformers.Qwen3Model,
        transformers.Qwen3Config(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            intermediate_size=96, vocab_size=40, max_position_embeddings=128, tie_word_embeddings=True,
        ),
    ),
}  # fmt: skip


def write_model(kind: str, folder: Path, model_class=None, **config):
    """Write a random model with a WordPiece tokenizer; return it."""
    base, values = KINDS[kind]
    torch.manual_seed(7)
    values = type(values)(**{**values.to_dict(), **config})
    model = (model_class or base)(values).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if "norm" in name.lower() else 0.3 if parameter.dim() == 1 else 0.12
            parameter.add_(torch.randn_like(parameter) * scale)
            parameter.copy_(parameter.to(torch.bfloat16).float())
    model.save_pretrained(folder)
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    return model, backend


def write_modules(folder: Path, mode: str, *, dense: bool = False, normalize: bool = True) -> torch.Tensor | None:
    """Write the modules of sentence-transformers; return the weight of the dense one."""
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    prompts = {"prompts": {"query": "query "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    if not dense:
        return None
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    (folder / "2_Dense").mkdir()
    settings = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    return weight


@asynccontextmanager
async def engine_of(folder: Path, cache: Path, *, dtype: str = "bf16", **source):
    config = EngineConfig(
        dtype=dtype, kv_dtype="bf16", max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=True,
        max_draft_tokens=0, max_itl_ms=0, max_waiting_seqs=64, threads=2, max_memory_bytes=2**31,
        request_limits=RequestLimits(max_best_of=1, max_stop_sequences=1, max_top_n_tokens=1),
    )  # fmt: skip
    engine = assemble(ModelSource(model=str(folder), cache_dir=cache, **source), config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close(deadline_s=5)


async def vectors(engine, texts, **params):
    found = []
    for text in texts:
        request = GenerationRequest(request_id="p", prompt=text, pooling=PoolingParams(**params))
        async for chunk in engine.generate(request):
            assert chunk.pooled is not None, chunk
            found.append(np.array(chunk.pooled.vectors(), np.float32))
    return found


def states_of(model, backend, text):
    with torch.no_grad():
        return model(input_ids=torch.tensor([backend.encode(text).ids])).last_hidden_state[0]


def unit(vector):
    return (vector / vector.norm()).numpy()


POOL = {"mean_tokens": lambda states: states.mean(0), "cls_token": lambda s: s[0], "lasttoken": lambda s: s[-1]}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("bert", "mean_tokens"), ("bert", "cls_token"), ("xlm-roberta", "mean_tokens"), ("qwen3", "lasttoken")),
        *(("modernbert", "cls_token"), ("modernbert with biases", "mean_tokens")),
        *(("nomic_bert", "mean_tokens"), ("embeddinggemma", "mean_tokens")),
    ],
)
async def test_embeddings_are_those_of_transformers(kind, mode, tmp_path):
    folder = tmp_path / "model"
    model, backend = write_model(kind, folder)
    write_modules(folder, mode)
    async with engine_of(folder, tmp_path) as engine:
        assert not engine.info.generates
        found = await vectors(engine, TEXTS)
        states = await vectors(engine, TEXTS, task="embed_tokens", normalize=False)
    for text, vector, rows in zip(TEXTS, found, states, strict=True):
        expected = states_of(model, backend, text)
        assert vector[0] == pytest.approx(unit(POOL[mode](expected)), abs=8e-3)
        assert np.linalg.norm(rows - expected.numpy()) < 0.02 * np.linalg.norm(expected.numpy())


@pytest.mark.model
async def test_the_real_minilm_embeds_as_transformers_does(minilm_path, tmp_path):
    texts = ["A man is eating food.", "A man eats a piece of bread.", "The stock market fell by 3 % on Monday.", "a"]
    texts.append("Ünïcödé, 漢字 and some longer text about rivers, mills and how their wheels turn. " * 8)
    model = transformers.BertModel.from_pretrained(minilm_path, dtype=torch.float32).eval()
    backend = tokenizers.Tokenizer.from_file(str(minilm_path / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    async with engine_of(minilm_path, tmp_path) as engine:
        assert engine.info.pooling.size == 384
        found = await vectors(engine, texts)
    for text, vector in zip(texts, found, strict=True):
        assert vector[0] == pytest.approx(unit(states_of(model, backend, text).mean(0)), abs=2e-3)
    eating, bread, market = (vector[0] for vector in found[:3])
    assert eating @ bread > 0.6
    assert eating @ market < 0.2


async def test_a_gguf_file_of_an_encoder_embeds_as_its_folder_does(tmp_path):
    folder = tmp_path / "model"
    write_model("bert", folder)
    write_modules(folder, "mean_tokens")
    texts = [*TEXTS, "FOX Skyes, réd-fox", "[CLS] fox"]
    async with engine_of(folder, tmp_path) as engine:
        expected = await vectors(engine, texts)
    async with engine_of(write_gguf(folder, tmp_path / "model.gguf"), tmp_path) as engine:
        assert not engine.info.generates
        found = await vectors(engine, texts)
    np.testing.assert_array_equal(found, expected)


async def test_int8_weights_keep_the_direction_of_an_embedding(tmp_path):
    folder = tmp_path / "model"
    model, backend = write_model("bert", folder)
    write_modules(folder, "mean_tokens")
    async with engine_of(folder, tmp_path, dtype="w8a8") as engine:
        found = await vectors(engine, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        assert vector[0] @ unit(states_of(model, backend, text).mean(0)) > 0.995


async def test_dense_modules_follow_the_pooling_and_prompts_are_read(tmp_path):
    folder = tmp_path / "model"
    model, backend = write_model("qwen3", folder)
    weight = write_modules(folder, "mean_tokens", dense=True, normalize=False)
    async with engine_of(folder, tmp_path) as engine:
        assert engine.info.pooling.size == 24
        assert engine.info.pooling.prompts == {"query": "query "}
        assert not engine.info.pooling.normalizes
        (vector,) = await vectors(engine, TEXTS[:1], dimensions=8)
    assert vector[0] == pytest.approx(unit((weight @ states_of(model, backend, TEXTS[0]).mean(0))[:8]), abs=2e-2)


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [
        ("xlm-roberta", transformers.XLMRobertaForSequenceClassification),
        ("qwen3", transformers.Qwen3ForSequenceClassification),
        ("bert", transformers.BertForSequenceClassification),
        ("modernbert", transformers.ModernBertForSequenceClassification),
        ("modernbert with biases", transformers.ModernBertForSequenceClassification),
    ],
)
async def test_scores_are_those_of_the_classification_head(kind, model_class, tmp_path):
    folder = tmp_path / "model"
    model, backend = write_model(kind, folder, model_class, num_labels=1, pad_token_id=1 if "rob" in kind else 0)
    async with engine_of(folder, tmp_path) as engine:
        assert engine.info.pooling.labels == ("LABEL_0",)
        found = await vectors(engine, TEXTS, task="score", normalize=False)
        (pair,) = await vectors(engine, ["red fox"], task="score", normalize=False, document="blue sky")
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            expected.append(model(input_ids=torch.tensor([backend.encode(text).ids])).logits[0, 0].item())
    scale = max(map(abs, expected))
    assert [vector[0, 0] for vector in found] == pytest.approx(expected, abs=0.04 * scale + 0.01)
    encoding = backend.encode("red fox", "blue sky")
    types = {"token_type_ids": torch.tensor([encoding.type_ids])} if kind == "bert" else {}
    with torch.no_grad():
        logit = model(input_ids=torch.tensor([encoding.ids]), **types).logits[0, 0].item()
        of_one_type = model(input_ids=torch.tensor([encoding.ids])).logits[0, 0].item()
    assert kind != "bert" or abs(logit - of_one_type) > 0.1 * scale
    assert pair[0, 0] == pytest.approx(logit, abs=0.04 * scale + 0.01)


async def test_a_reranker_without_a_head_scores_by_yes_and_no(tmp_path):
    folder = tmp_path / "model"
    model, backend = write_model("qwen3", folder, transformers.Qwen3ForCausalLM)
    async with engine_of(folder, tmp_path, task="score", max_model_len=128) as engine:
        (score,) = await vectors(engine, ["red"], task="score", normalize=False, document="fox", truncate="right")
        template = engine._processor.prompts._pooler.pair_template
    ids = backend.encode(template.format(query="red", document="fox"), add_special_tokens=False).ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    assert score[0, 0] == pytest.approx((logits[9] - logits[10]).item(), abs=0.05 * logits.abs().max().item())


async def test_a_model_cannot_be_used_for_what_it_was_not_made_for(tmp_path):
    folder = tmp_path / "model"
    write_model("bert", folder)
    for task, message in (("generate", "has no LM head"), ("score", "has no classification head")):
        with pytest.raises(SettingsError, match=message):
            async with engine_of(folder, tmp_path, task=task):
                pass
