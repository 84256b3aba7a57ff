"""The budget of a reasoning under the names of each dialect."""

from dataclasses import replace

import pytest

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.errors import InvalidRequest
from headrace.serving.wire.anthropic.dialect import AnthropicMessages
from headrace.serving.wire.ollama.dialect import OllamaChat
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.responses import OpenAIResponses
from tests.serving.wire.samples import CONTEXT, MODEL, body

HI = [{"role": "user", "content": "Hi"}]
DIALECTS = {
    "chat": (OpenAIChat(), {"messages": HI}),
    "responses": (OpenAIResponses(), {"input": "Hi"}),
    "messages": (AnthropicMessages(), {"messages": HI, "max_tokens": 2000}),
    "ollama": (OllamaChat(), {"messages": HI}),
}


def asked(name, fields, **facts):
    dialect, start = DIALECTS[name]
    model = replace(MODEL, answer_format=REASONING_TAGS, **facts)
    return dialect.parse(body(model="smol", **start, **fields), replace(CONTEXT, model=model)).requests[0]


@pytest.mark.parametrize(
    ("name", "fields", "budget"),
    [
        ("chat", {}, None),
        ("chat", {"thinking_token_budget": 7}, 7),
        ("chat", {"thinking_token_budget": 0}, 0),
        ("chat", {"thinking_token_budget": -1, "reasoning_effort": "low"}, None),
        ("chat", {"thinking_budget_tokens": 7}, 7),
        ("chat", {"reasoning_budget_tokens": 0, "thinking_budget": 3}, 0),
        ("chat", {"thinking_budget": 7, "enable_thinking": True}, 7),
        ("chat", {"thinking": {"type": "enabled", "budget_tokens": 7}, "reasoning_effort": "low"}, 7),
        ("chat", {"thinking": True}, None),
        ("chat", {"reasoning": {"max_tokens": 7}}, 7),
        ("chat", {"reasoning": {"effort": "low"}}, 1024),
        ("chat", {"reasoning_effort": "minimal"}, 512),
        ("chat", {"reasoning_effort": "medium"}, 4096),
        ("chat", {"reasoning_effort": "high"}, None),
        ("chat", {"reasoning_effort": "none"}, None),
        ("responses", {"reasoning": {"effort": "low"}}, 1024),
        ("responses", {"reasoning": {"max_tokens": 7, "effort": "high"}}, 7),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        ("messages", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, 4096),
        ("messages", {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, None),
        ("ollama", {"think": "low"}, 1024),
        ("ollama", {"think": True}, None),
    ],
)
def test_each_dialect_has_names_for_the_budget(name, fields, budget):
    assert asked(name, fields).max_reasoning_tokens == budget


@pytest.mark.parametrize("facts", [{"has_effort_levels": True}, {"backend": "vllm"}])
def test_an_effort_is_no_budget_where_the_template_has_levels_or_vllm_generates(facts):
    assert asked("chat", {"reasoning_effort": "low"}, **facts).max_reasoning_tokens is None
    assert asked("chat", {"thinking_token_budget": 7}, **facts).max_reasoning_tokens == 7


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat", {"thinking_token_budget": -2}),
        ("chat", {"thinking_budget": -2}),
        ("chat", {"thinking": {"type": "enabled", "budget_tokens": -2}}),
        ("chat", {"reasoning": {"max_tokens": -1}}),
        ("responses", {"reasoning": {"max_tokens": -1}}),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
    ],
)
def test_a_negative_budget_is_refused(name, fields):
    with pytest.raises(InvalidRequest, match="below minimum value"):
        asked(name, fields)


@pytest.mark.parametrize(
    ("fields", "values", "is_shown"),
    [
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low", "enable_thinking": True}, True),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}, True),
        ({"reasoning": {"exclude": True}}, {}, False),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, True),
        ({"thinking": {"type": "auto"}}, {"enable_thinking": True}, True),
        ({"thinking": False}, {"enable_thinking": False}, True),
        ({"enable_thinking": False, "thinking": True}, {"enable_thinking": False}, True),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
            True,
        ),
    ],
)
def test_the_switches_of_other_apis_turn_thinking_on_and_off_and_hide_it(fields, values, is_shown):
    dialect, start = DIALECTS["chat"]
    parsed = dialect.parse(body(**start, **fields), CONTEXT)
    assert parsed.requests[0].prompt.template_values == values
    assert parsed.reply.options.plan.includes_reasoning is is_shown
