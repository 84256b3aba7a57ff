"""The stand-ins for AWS's Neuron packages: the same folders and calls, by transformers on the CPU."""

import json
import os
import pickle

import pytest
import torch
from headrace_handler.standins.transformers_neuronx.config import GenerationConfig, NeuronConfig
from headrace_handler.standins.transformers_neuronx.constants import GQA
from headrace_handler.standins.transformers_neuronx.generation_utils import HuggingFaceGenerationModelAdapter
from headrace_handler.standins.transformers_neuronx.llama.model import LlamaForSampling
from headrace_handler.standins.transformers_neuronx.module import load_split, save_pretrained_split
from headrace_handler.standins.transformers_neuronx.opt.model import OPTForSampling
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from headrace_handler.standins import torch_neuronx
from tests.parity.checkpoints import write_checkpoint

PROMPTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


class Tokens(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self):
        self.steps = []
        self.is_over = False

    def put(self, value):
        self.steps.append(value.tolist())

    def end(self):
        self.is_over = True


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_checkpoint("llama", folder)
    return folder


@pytest.fixture(scope="module")
def network(plain) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)


@pytest.fixture(scope="module")
def split(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    save_pretrained_split(network, folder)
    return folder


def greedy(network, **options):
    return network.generate(PROMPTS, attention_mask=torch.ones_like(PROMPTS), do_sample=False, **options)


def test_a_split_folder_samples_as_the_model_that_was_saved(network, split):
    model = LlamaForSampling.from_pretrained(split, batch_size=2, tp_degree=24, amp="f32", context_length_estimate=[8])
    model.to_neuron()
    expected = greedy(network, max_length=16)
    assert torch.equal(model.sample(PROMPTS, 16, top_k=1), expected)
    model.reset()
    padded = torch.nn.functional.pad(PROMPTS, (2, 0))
    assert torch.equal(model.sample(padded, 18, start_ids=torch.tensor([2, 2]), top_k=1)[:, 2:], expected)


def test_a_plain_folder_is_loaded_too_and_positions_bound_the_answer(plain, network):
    model = LlamaForSampling.from_pretrained(plain, batch_size=2, n_positions=8)
    assert torch.equal(model.sample(PROMPTS, 100, top_k=1), greedy(network, max_length=8))
    sampled = model.sample(PROMPTS, 8, top_k=5)
    assert sampled.shape == (2, 8)


def test_settings_of_the_compiler_are_accepted_and_said_to_have_no_effect(split, network, monkeypatch, caplog):
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1")
    model = OPTForSampling.from_pretrained(
        split,
        batch_size=2,
        n_positions=[8, 12],
        neuron_config=NeuronConfig(group_query_attention=GQA.REPLICATED_HEADS),
        on_device_generation=GenerationConfig(do_sample=True),
    )
    model.to_neuron()
    assert torch.equal(model.sample(PROMPTS, 100, top_k=1), greedy(network, max_length=12))
    assert "There is no Neuron device" in caplog.text
    assert "NEURON_CC_FLAGS" in caplog.text


def test_the_adapter_streams_what_generate_returns(network, split):
    model = LlamaForSampling.from_pretrained(split, batch_size=1)
    adapter = HuggingFaceGenerationModelAdapter(AutoConfig.from_pretrained(split), model)
    adapter.reset_generation()
    streamer = Tokens()
    ids = adapter.generate(
        input_ids=PROMPTS[:1], attention_mask=torch.ones_like(PROMPTS[:1]), streamer=streamer, max_new_tokens=5
    )
    assert [token for step in streamer.steps[1:] for token in step] == ids[0, 4:].tolist()
    assert streamer.is_over
    assert adapter.device == network.device


def test_a_batch_of_another_size_is_refused(split):
    model = LlamaForSampling.from_pretrained(split, batch_size=1)
    with pytest.raises(ValueError, match=r"The batch has 2 rows; expected 1"):
        model.sample(PROMPTS, 8)
    with pytest.raises(ValueError, match=r"amp is 'f8'; expected one of f32, bf16, f16"):
        LlamaForSampling.from_pretrained(split, amp="f8")


@pytest.mark.parametrize(
    ("file", "said"), [("../p0", "not a file of its folder"), ("p0.empty_json", "describes random weights")]
)
def test_a_listing_that_leaves_its_folder_or_has_no_weights_is_refused(tmp_path, file, said):
    (tmp_path / "key_to_filename.json").write_text(json.dumps({"w": file}))
    with pytest.raises(ValueError, match=said):
        load_split(tmp_path)


class Command:
    def __reduce__(self):
        return (os.mkdir, ("ran",))


def test_a_pickle_in_a_split_folder_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key_to_filename.json").write_text(json.dumps({"w": "p0.w"}))
    torch.save(Command(), tmp_path / "p0.w")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load_split(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_cpu_plays_as_many_cores_as_the_process_asks_for(monkeypatch):
    assert torch_neuronx.xla_impl.data_parallel.device_count() == 1
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "12")
    assert torch_neuronx.xla_impl.data_parallel.device_count() == 12
    assert not hasattr(torch_neuronx, "DataParallel")
    with pytest.raises(AttributeError, match=r"torch_neuronx.trace needs a Neuron device"):
        torch_neuronx.trace(None)
