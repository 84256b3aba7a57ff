"""Pre-tokenizers split texts as llama.cpp does, or as the tokenizer.json of the models that name them."""

import pytest
from tokenizers import decoders

from headrace.inference.models.pretokenizers import PRE_TOKENIZERS, byte_level_parts

TEXT = " Don't WE'LL  12345!!\n\n日本ภา `x`=$5 a/b/\n"
SPLITS = {
    "default": " Don|'|t| WE|'|LL| | |123|45|!!|\n|\n|日本ภา| `|x|`|=$|5| a|/|b|/|\n",
    "gpt-2 phi-2 olmo mpt exaone4 jina-v2-code": " Don|'t| WE|'|LL| | 12345|!!|\n|\n|日本ภา| `|x|`=$|5| a|/|b|/|\n",
    "smollm starcoder refact command-r codeshell exaone minerva-7b": (
        " Don|'t| WE|'|LL|  |1|2|3|4|5|!!|\n|\n|日本ภา| `|x|`=$|5| a|/|b|/|\n"
    ),
    "llama-bpe llama3 llama-v3 falcon3 pixtral lfm2 dbrx smaug-bpe chatglm-bpe glm4 jais-2": (
        " Don|'t| WE|'LL| | |123|45|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n"
    ),
    "minicpm5": " Don|'t| WE|'LL|  |123|45|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n",
    "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan grok-2 qwen35 ufakzeka bailingmoe": (
        " Don|'t| WE|'LL| | |1|2|3|4|5|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n"
    ),
    "laguna": " Don|'t| WE|'LL| | |1|2|3|4|5|!!|\n\n|日本ภา| `|x|`=$|5| a|/b|/|\n",
    "seed-coder": " Don|'t| WE|'LL| | |1|2|3|4|5|!!|\n\n|日本ภา| `|x|`=$|5| a|/b|/|\n",
    "exaone-moe": " Don|'t| WE|'LL| | |1|2|3|4|5|!!\n|\n|日本ภา| `|x|`=$|5| a|/b|/\n",
    "tekken": " Don|'t| WE|'LL| | |1|2|3|4|5|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n",
    "gpt-4o llama4 granite-embed-multi-97m": (" Don't| WE'LL| | |123|45|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n"),
    "tiny_aya cohere2moe": " Don't| WE'LL|  |12|345|!!\n\n|日本ภา| `|x|`=$|5| a|/b|/\n",
    "kimi-k2": " Don't| WE'LL| | |123|45|!!\n\n|日本|ภา| `|x|`=$|5| a|/b|/\n",
    "falcon": " Don|'|t| WE|'|LL| | |123|45|!!|\n|\n|日本ภา| |`|x|`=$|5| a|/|b|/|\n",
    "deepseek-llm": " Don|'|t| WE|'|LL|  |12345|!!|\n|\n|日本ภา| `|x|`=$|5| a|/|b|/|\n",
    "deepseek-coder": " Don|'|t| WE|'|LL|  |1|2|3|4|5|!!|\n|\n|日本ภา| `|x|`=$|5| a|/|b|/|\n",
    "deepseek-v3 hunyuan-dense": " Don|'t| WE|'LL|  |123|45|!!\n\n|日本|ภา| `|x|`=$|5| a|/b|/\n",
    "spark2_5": " Don|'t| WE|'LL|  |1|2|3|4|5|!!|\n|\n|日本|ภา| `|x|`=$|5| a|/b|/|\n",
    "afmoe": " Don|'t| WE|'LL|  |12|345|!!\n\n|日本|ภา| `|x|`=$|5| a|/b|/\n",
    "superbpe": " Don't WE'LL  |12|345|!!\n\n日本ภา `x`=$|5| a/b/\n",
    "youtu": " Don't| WE'LL| | |1|2|3|4|5|!!\n\n|日本|ภา| `|x|`=$|5| a|/b|/\n",
    "poro-chat bloom": " Don't| WE'LL| | 12345|!!\n\n|日本ภา| `x`=$5| a/b/|\n",
    "viking": " Don't| WE'LL| | |1|2|3|4|5|!!\n\n|日本ภา| `x`=$|5| a/b/|\n",
    "chameleon": " Don|'|t| WE|'|LL|  |1|2|3|4|5|!|!|\n|\n|日本ภา| |`|x|`|=|$|5| a|/|b|/|\n",
}
"""The words of the text by the names that split it so; from llama.cpp's own `unicode_regex_split`."""


def words(name: str, text: str) -> list[str]:
    _, splitter = byte_level_parts(PRE_TOKENIZERS[name])
    decoder = decoders.ByteLevel()
    return [decoder.decode([piece]) for piece, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(("names", "expected"), SPLITS.items())
def test_each_name_splits_texts_by_the_rules_of_its_group(names, expected):
    assert {name: "|".join(words(name, TEXT)) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_only_the_groups_that_say_so_use_whole_words_add_bos_and_compose():
    rules = PRE_TOKENIZERS.items()
    assert {name for name, rule in rules if rule.add_bos} == {
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        *("tekken", "chameleon"),
    }
    assert {name for name, rule in rules if rule.ignore_merges and not rule.add_bos} == {
        *("glm4", "glm5", "minicpm5", "youtu", "granite-embed-multi-97m"),
    }
    assert {name for name, rule in rules if rule.compose} == {
        *("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "qwen35", "mpt", "olmo", "command-r"),
    }


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tiny_aya", "1234567 1234a", "1|234|567| |123|4|a"),
        ("afmoe", "1234567a", "1|234|567|a"),
        ("superbpe", "a1234567a", "a|1|234|567|a"),
        ("deepseek-llm", "Ab ქართ \uff21\u3002", "Ab| |ქართ| \uff21|\u3002"),
        ("qwen35", "e\u0301X", "e\u0301X"),
        ("llama-bpe", "e\u0301X", "e|\u0301X"),
    ],
)
def test_numbers_are_grouped_from_the_right_and_marks_stay_with_letters_where_the_rules_say_so(name, text, expected):
    assert "|".join(words(name, text)) == expected
