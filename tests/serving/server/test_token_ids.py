"""vLLM's fields about tokens in OpenAI's chats and completions: ids of tokens, and logprobs of the prompt."""

from itertools import chain
from typing import Any

import pytest

WORDS = "one two three"
CHAT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": WORDS}]}
TEXT: dict[str, Any] = {"model": "echo", "prompt": WORDS, "max_tokens": 3}


@pytest.fixture
def client(echo):
    import openai

    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="-", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_returns_the_ids_of_its_tokens_whole_and_streamed(client, n) -> None:
    ids = {"return_token_ids": True}
    whole = client.chat.completions.create(**CHAT, n=n, extra_body=ids)
    expected = [choice.token_ids for choice in whole.choices]
    assert all(len(found) == whole.usage.completion_tokens / n for found in expected)
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    events = list(client.chat.completions.create(**CHAT, n=n, stream=True, extra_body=ids))
    streamed: list[list[int]] = [[] for _ in range(n)]
    for choice in chain.from_iterable(event.choices for event in events):
        streamed[choice.index] += getattr(choice, "token_ids", [])
    assert streamed == expected
    firsts = [event.prompt_token_ids for event in events if hasattr(event, "prompt_token_ids")]
    assert firsts == [whole.prompt_token_ids] * n


def test_completions_return_the_ids_of_each_choice(client) -> None:
    body = {**TEXT, "prompt": [WORDS, "four five"], "extra_body": {"return_token_ids": True}}
    whole = client.completions.create(**body)
    assert [len(choice.token_ids) for choice in whole.choices] == [3, 3]
    assert whole.choices[0].prompt_token_ids != whole.choices[1].prompt_token_ids
    events = list(client.completions.create(**body, stream=True))
    for choice in whole.choices:
        parts = [part for event in events for part in event.choices if part.index == choice.index]
        assert list(chain.from_iterable(part.token_ids for part in parts)) == choice.token_ids
        assert [part.prompt_token_ids for part in parts if hasattr(part, "prompt_token_ids")] == [
            choice.prompt_token_ids
        ]


def test_answers_have_no_ids_unless_they_are_asked_for(client) -> None:
    for answer in (client.chat.completions.create(**CHAT), client.completions.create(**TEXT)):
        assert "token_ids" not in answer.to_json()
        assert "prompt_logprobs" not in answer.to_json()


def test_logprobs_name_tokens_by_their_ids(client) -> None:
    ids = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, extra_body=ids).choices[0]
    named = [item.token for item in chat.logprobs.content]
    assert named == [f"token_id:{token_id}" for token_id in chat.token_ids[: len(named)]]
    assert bytes(chat.logprobs.content[0].bytes) == b"one"
    assert all(top.token.startswith("token_id:") for item in chat.logprobs.content for top in item.top_logprobs)
    text = client.completions.create(**TEXT, logprobs=2, extra_body=ids).choices[0]
    assert text.logprobs.tokens == [f"token_id:{token_id}" for token_id in text.token_ids]
    assert all(name.startswith("token_id:") for top in text.logprobs.top_logprobs for name in top)
    *_, last = client.completions.create(**TEXT, logprobs=0, stream=True, extra_body=ids)
    assert last.choices[0].logprobs.tokens[0].startswith("token_id:")


@pytest.mark.parametrize("echoes", [False, True])
def test_the_prompt_has_logprobs_by_token_id(client, echoes) -> None:
    more = {"prompt_logprobs": 1, "return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, extra_body=more)
    [choice] = client.completions.create(**TEXT, echo=echoes, logprobs=0, extra_body=more).choices
    for found, ids in (
        (chat.prompt_logprobs, chat.prompt_token_ids),
        (choice.prompt_logprobs, choice.prompt_token_ids),
    ):
        assert len(found) == len(ids)
        for token_id, entry in zip(ids, found, strict=True):
            if entry is not None:
                assert entry[str(token_id)].keys() == {"logprob", "rank", "decoded_token"}
                assert min(item["rank"] for item in entry.values() if item["rank"]) == 1


def test_what_makes_no_sense_is_refused(client) -> None:
    import openai

    for call, body in ((client.chat.completions.create, CHAT), (client.completions.create, TEXT)):
        with pytest.raises(openai.BadRequestError, match="cannot be combined with 'stream'"):
            call(**body, stream=True, extra_body={"prompt_logprobs": 1})
        with pytest.raises(openai.BadRequestError, match="Expected a value >= 0"):
            call(**body, extra_body={"prompt_logprobs": -1})
    with pytest.raises(openai.BadRequestError, match="'prompt_embeds'"):
        client.completions.create(**TEXT, extra_body={"prompt_embeds": "AAAA"})
