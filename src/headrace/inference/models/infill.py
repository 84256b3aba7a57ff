"""
Fill-in-the-middle: how a model that was trained for it reads the text before and after a gap.

Each family has its own tokens. Where the vocabulary of a GGUF file names them, those names apply.
Sources: the model cards of the families, and llama.cpp `src/llama-vocab.cpp` and `tools/server` (`/infill`), which has
files of context in the form of Qwen2.5-Coder (arXiv 2409.12186, section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.core.generation import InfillPrompt
from headrace.inference.models.tokenizer import Tokenizer


class Form(NamedTuple):
    """The tokens in front of the three parts; the answer is the middle."""

    prefix: str
    suffix: str
    middle: str | None
    """None: nothing follows the last part."""
    is_suffix_first: bool = False


FORMS: Final = (
    Form("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
    Form("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StarCoder2, Granite Code
    Form("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Form("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    Form("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
    Form("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM 4.5 and later
    Form("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", is_suffix_first=True),  # Seed-Coder
    Form("[PREFIX]", "[SUFFIX]", None, is_suffix_first=True),  # Codestral
)
_REPOSITORY: Final = ("<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<reponame>")
_FILE: Final = ("<|file_sep|>", "<file_sep>")
_ENDS: Final = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "\u2581<EOT>", "<|endoftext|>", "<|cursor|>"),
    *(*_REPOSITORY, *_FILE),
)
"""Tokens that end the middle, beside the model's own ends: base models go on with the next file."""
_PROJECT: Final = "project\n"
_FILE_NAME: Final = "file\n"
"""Names of what a request leaves unnamed: the repository and the file with the gap."""


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids of a model's tokens."""

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool
    repository: int | None
    file: int | None
    end_ids: frozenset[int]


def find_infill(tokenizer: Tokenizer) -> InfillTokens | None:
    """Return the tokens of a model, or None if it has none."""

    def first(names: Sequence[str | None]) -> int | None:
        ids = (tokenizer.token_id(name) for name in names if name)
        return next((index for index in ids if index is not None and index < tokenizer.vocab_size), None)

    named = tokenizer.infill_names
    forms: tuple[Form, ...] = FORMS
    if "prefix" in named and "suffix" in named:
        forms = (Form(named["prefix"], named["suffix"], named.get("middle")), *FORMS)
    for form in forms:
        prefix, suffix, middle = first([form.prefix]), first([form.suffix]), first([form.middle])
        if prefix is None or suffix is None or (middle is None and form.middle):
            continue
        ends = (first([name]) for name in (named.get("pad"), *_ENDS))
        return InfillTokens(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            is_suffix_first=form.is_suffix_first,
            repository=first([named.get("repository"), *_REPOSITORY]),
            file=first([named.get("file"), *_FILE]),
            end_ids=frozenset(index for index in ends if index is not None),
        )
    return None


def infill_ids(tokenizer: Tokenizer, tokens: InfillTokens, prompt: InfillPrompt, *, most: int) -> list[int]:
    """
    Return the ids of a prompt; of its other files as many of the last ones as fit into `most` tokens.

    A model without a token for files reads them as text in front of the prefix, each after a comment with its path
    (DeepSeek-Coder's form of a repository).
    """
    start = tokenizer.encode("") if tokenizer.bos_token_id is not None else []
    start = [index for index in start if index == tokenizer.bos_token_id]
    before = [tokens.prefix, *tokenizer.encode(prompt.prefix, add_special_tokens=False)]
    after = [tokens.suffix, *tokenizer.encode_inside(prompt.suffix)]
    end = [] if tokens.middle is None else [tokens.middle]
    files = _files(tokenizer, tokens, prompt.files, room=most - len(start) - len(before) - len(after) - len(end))
    if tokens.file is None:
        before = [tokens.prefix, *files, *before[1:]]
        files = []
    parts = (after, before) if tokens.is_suffix_first else (before, after)
    return [*start, *files, *parts[0], *parts[1], *end]


def _files(tokenizer: Tokenizer, tokens: InfillTokens, files: Sequence[tuple[str, str]], *, room: int) -> list[int]:
    if not files:
        return []
    head = [] if tokens.repository is None else [tokens.repository, *tokenizer.encode_inside(_PROJECT)]
    last = [] if tokens.file is None else [tokens.file, *tokenizer.encode_inside(_FILE_NAME)]
    kept: list[list[int]] = []
    room -= len(head) + len(last)
    for path, text in reversed(files):
        if tokens.file is None:
            ids = tokenizer.encode_inside(f"# {path}\n{text}\n")
        else:
            ids = [tokens.file, *tokenizer.encode_inside(f"{path}\n{text}")]
        if len(ids) > room:
            break
        room -= len(ids)
        kept.append(ids)
    if not kept:
        return []
    return [*head, *(index for ids in reversed(kept) for index in ids), *last]
