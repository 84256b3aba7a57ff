"""Prompts for fill-in-the-middle: the tokens of each family's model card, and those that a GGUF file names."""

import pytest
from tokenizers import AddedToken

from headrace.core.generation import InfillPrompt
from headrace.inference.models.infill import find_infill, infill_ids
from headrace.inference.models.tokenizer import Tokenizer
from tests.inference.models.model_files import byte_level_tokenizer, sentencepiece_tokenizer

PROMPT = InfillPrompt(prefix="def add(a, b):\n    return", suffix="\nprint(add(1, 2))")
FILES = (("a.py", "A = 1\n"), ("b/c.py", "B = 2\n"))


def with_tokens(backend, *names, **options):
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return Tokenizer(backend, vocab_size=backend.get_vocab_size(), **options)


def ids_of(tokenizer, *, most=1000, files=()):
    prompt = InfillPrompt(prefix=PROMPT.prefix, suffix=PROMPT.suffix, files=files)
    return infill_ids(tokenizer, find_infill(tokenizer), prompt, most=most)


@pytest.mark.parametrize(
    "form",
    [
        "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
        "<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>",
        "<\uff5cfim\u2581begin\uff5c>{prefix}<\uff5cfim\u2581hole\uff5c>{suffix}<\uff5cfim\u2581end\uff5c>",
        "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>",
        "<[fim-suffix]>{suffix}<[fim-prefix]>{prefix}<[fim-middle]>",
        "[SUFFIX]{suffix}[PREFIX]{prefix}",
    ],
)
def test_the_prompt_has_the_form_of_the_model_card(form):
    names = form.replace("{prefix}", "\n").replace("{suffix}", "\n").split()
    tokenizer = with_tokens(byte_level_tokenizer(), *names)
    expected = form.format(prefix=PROMPT.prefix, suffix=PROMPT.suffix)
    assert ids_of(tokenizer) == tokenizer.encode(expected)


def test_code_llama_s_suffix_begins_without_a_space():
    tokenizer = with_tokens(sentencepiece_tokenizer(), "\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>")
    pre, suf, mid, eot = (tokenizer.token_id(f"\u2581<{name}>") for name in ("PRE", "SUF", "MID", "EOT"))
    ids = ids_of(tokenizer)
    place = ids.index(suf)
    assert (ids[0], ids[-1]) == (pre, mid)
    assert tokenizer.decode(ids[1:place]) == f" {PROMPT.prefix}"
    assert tokenizer.decode(ids[place + 1 : -1]) == PROMPT.suffix
    assert find_infill(tokenizer).end_ids == {eot}


def test_other_files_precede_the_prefix_and_the_first_ones_are_left_out_without_room():
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>")
    tokenizer = with_tokens(byte_level_tokenizer(), *names, bos_token_id=0)
    gap = f"<|fim_prefix|>{PROMPT.prefix}<|fim_suffix|>{PROMPT.suffix}<|fim_middle|>"
    second = f"<|file_sep|>b/c.py\nB = 2\n<|file_sep|>file\n{gap}"
    first = f"<|file_sep|>a.py\nA = 1\n{second}"
    whole = tokenizer.encode(f"<|repo_name|>project\n{first}")
    assert ids_of(tokenizer, files=FILES) == whole
    assert ids_of(tokenizer, files=FILES, most=len(whole)) == whole
    assert ids_of(tokenizer, files=FILES, most=len(whole) - 1) == tokenizer.encode(f"<|repo_name|>project\n{second}")
    assert ids_of(tokenizer, files=FILES, most=1) == tokenizer.encode(gap)
    assert find_infill(tokenizer).end_ids == {tokenizer.token_id(name) for name in names[3:]}


def test_a_model_without_a_token_for_files_reads_them_as_comments_in_the_prefix():
    tokenizer = with_tokens(byte_level_tokenizer(), "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    head = "# a.py\nA = 1\n\n# b/c.py\nB = 2\n\n"
    text = tokenizer.decode(ids_of(tokenizer, files=FILES), skip_special_tokens=False)
    assert text == f"<fim_prefix>{head}{PROMPT.prefix}<fim_suffix>{PROMPT.suffix}<fim_middle>"


def test_the_tokens_that_a_gguf_file_names_come_first():
    named = {"prefix": "<a>", "suffix": "<b>", "middle": "<c>", "pad": "<d>"}
    qwen = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    tokenizer = with_tokens(byte_level_tokenizer(), *named.values(), *qwen, infill_names=named)
    assert ids_of(tokenizer) == tokenizer.encode(f"<a>{PROMPT.prefix}<b>{PROMPT.suffix}<c>")
    assert find_infill(tokenizer).end_ids == {tokenizer.token_id("<d>")}


@pytest.mark.parametrize("names", [(), ("<fim_prefix>", "<fim_suffix>"), ("[PREFIX]",)])
def test_a_model_without_the_tokens_has_none(names):
    assert find_infill(with_tokens(byte_level_tokenizer(), *names)) is None


def test_a_token_that_the_embedding_lacks_is_none_of_the_model():
    backend = byte_level_tokenizer()
    size = backend.get_vocab_size()
    backend.add_tokens([AddedToken(name, special=True) for name in ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")])
    assert find_infill(Tokenizer(backend, vocab_size=size + 2)) is None
