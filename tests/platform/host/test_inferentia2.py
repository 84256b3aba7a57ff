"""The flow of the article on Llama 2 and AWS Inferentia2, with the SageMaker SDK 2.x and its kind of handler."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headrace_handler.standins.transformers_neuronx.module import save_pretrained_split

from tests.waiting import WAIT_S

from .running import Running, until
from .sdk_scripts import EXAMPLES, Command

pytestmark = pytest.mark.model

FIRST_PROMPT = "Today the weather is really nice and I am planning on"
NUM_TOKENS = 16


def answers_of(network: Any, tokenizer_folder: Path, prompts: list[str]) -> list[str]:
    """Prompts and what transformers itself continues them with, one by one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    answers = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = network.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)
        answers.append(tokenizer.decode(ids[0], skip_special_tokens=True))
    return answers


def write_folders(split: Path, whole: Path, tokenizer_folder: Path) -> Any:
    """Write a tiny network as the article's first step does, and as transformers does; return the network."""
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(tokenizer_folder)
    config.update({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32})
    config.update({"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "float32"})
    torch.manual_seed(0)
    network = LlamaForCausalLM(config).eval()
    save_pretrained_split(network, split)
    network.save_pretrained(whole)
    for folder in (split, whole):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer_folder / name, folder)
    return network


def output_of(micro_batch_size: str, sdk2: Command, shell: dict[str, str], checkpoint: Path) -> str:
    """Run the example and return what it prints."""
    command = [*sdk2, EXAMPLES / "inferentia2.py", checkpoint, micro_batch_size]
    done = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=3 * WAIT_S, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}"
    return done.stdout


def check(output: str, network: Any, tokenizer_folder: Path) -> None:
    """Compare what the example printed with the network's own answers; words came in parts."""
    *_, words, first, second, third, fourth = output.strip().splitlines()
    answers = [json.loads(line) for line in (first, second, third, fourth)]
    prompts = [FIRST_PROMPT, *(answer["prompt"] for answer in answers)]
    expected = answers_of(network, tokenizer_folder, prompts)
    assert len(words) > len(FIRST_PROMPT)
    assert expected[0].startswith(words.rstrip())
    assert [answer["text"] for answer in answers] == expected[1:]
    for answer in answers:
        num_words = len(answer["text"].removeprefix(answer["prompt"]).split())
        assert answer["parts"] >= num_words > 0


@pytest.mark.timeout(900)
def test_the_inferentia2_example_streams_words_with_micro_batches_of_one_and_four(
    platform: Running, shell: dict[str, str], sdk2: Command, smollm2_folder: Path, tmp_path: Path
) -> None:
    network = write_folders(tmp_path / "split", tmp_path / "whole", smollm2_folder)
    with ThreadPoolExecutor(2) as scripts:
        by_one = scripts.submit(output_of, "1", sdk2, shell, tmp_path / "split")
        by_four = scripts.submit(output_of, "4", sdk2, shell, tmp_path / "whole")
    check(by_one.result(), network, smollm2_folder)
    check(by_four.result(), network, smollm2_folder)
    client = platform.client("sagemaker")
    until(lambda: not client.list_endpoints(NameContains="ts-inf2")["Endpoints"], "endpoints were deleted")
