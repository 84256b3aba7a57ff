"""
The forms in which open models write tool calls into their answers: data.

A marker begins a call or a block of calls. The text after it tells forms with the same marker apart, so no form has to
be chosen for a model: templates often show the tools without the form of a call (LFM2).

Source: chat templates of the models; vLLM `tool_parsers/`; llama.cpp `common/chat.cpp`.
"""

from dataclasses import astuple, dataclass, replace
from typing import Final, Literal

TOOL_CALL: Final = "<tool_call>"
TOOL_CALL_END: Final = "</tool_call>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGUMENTS: Final = "[ARGS]"
"""`[CALL_ID]` and `[ARGS]` separate the name, the id and the arguments in Mistral's newer format."""

_GIGACHAT_HEADERS: Final = tuple(f"{before}function call<|role_sep|>\n" for before in ("<|message_sep|>\n\n", ""))

JSON_ENDS: Final = {
    TOOL_CALL: TOOL_CALL_END,
    TOOL_CALLS: "",
    "<|python_tag|>": "",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|tool_call|>": "<|/tool_call|>",
    "<tool_calls>": "</tool_calls>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    **dict.fromkeys(("Action:\n```json", "Action: ```json", "Action:```json"), "```"),
    **dict.fromkeys(("<|function_call|>", *_GIGACHAT_HEADERS), "<|message_sep|>"),
}
"""
The markers of JSON objects with `name` and `arguments`, with the marker after them, which may be missing.

`<tool_call>`: Hermes, Qwen, SmolLM, Granite 4. `[TOOL_CALLS]`: Mistral. `<|python_tag|>`: Llama 3.
`<TOOLCALL>`: Nemotron Nano 2. `<|tool_call|>`: Phi-4-mini, Granite 3.
`<tool_calls>`: Jamba, Apriel, Hunyuan A13B, MiniMax M1. `<|START_ACTION|>`: Command R7B and A, with `tool_name` and
`parameters`; `Action:`: Command R and R+. `<|function_call|>`: GigaChat 3.1; GigaChat 3 begins another message.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedForm:
    """
    Calls with a tag for each argument, whose value is raw text; the schema of the function gives it a type.

    A JSON object in place of the tags is the arguments too (`<function=f>{...}</function>`, Llama 3.1 and Functionary).
    """

    start: str
    """Begins a block."""
    call: str = ""
    """Stands before the name of the function."""
    name_end: str = ""
    key: str
    key_end: str
    kind: str = ""
    """Begins an attribute of the key, up to the next quote, with the type of the value; it may be missing."""
    value: str = ""
    """Stands before a value, after the end of its key."""
    value_end: str
    call_end: str
    end: str = ""
    """Ends a block of one or several calls; empty: a block has one call."""
    has_lines: bool = False
    """A value stands on lines of its own; the first and the last line break are not part of it."""


TEXT_KINDS: Final = frozenset({"true", "string"})
"""Types of `TaggedForm.kind` that make a value a string: DSML's `string="true"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadedForm:
    """Calls with a header that names the function, and JSON arguments."""

    start: str
    call: str
    name: str = ""
    """Stands between the id of the call and the name; empty: the header is the name or has it (`functions.f:0`)."""
    arguments: str
    call_end: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclosedForm:
    """Calls in a notation of their own, between two markers."""

    start: str
    end: str
    notation: Literal["python", "gemma", "by_name", "nested"]
    """
    Python calls with keyword arguments; `call:f{key:value}`; JSON objects whose only key is the function; or a tag for
    each key and item, in which objects and arrays have tags of their own.
    """


CallForm = TaggedForm | HeadedForm | EnclosedForm

GEMMA_QUOTE: Final = '<|"|>'
"""Stands on both sides of a string in Gemma's calls, which has no escapes."""
PYTHON_CALLS: Final = EnclosedForm(start="<|tool_call_start|>", end="<|tool_call_end|>", notation="python")
_FUNCTIONS: Final = TaggedForm(
    start=TOOL_CALL,
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    end=TOOL_CALL_END,
    has_lines=True,
)
_ARGUMENT_PAIRS: Final = TaggedForm(
    start=TOOL_CALL,
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    call_end=TOOL_CALL_END,
)
_HY3_PAIRS: Final = TaggedForm(
    start="<tool_calls:opensource>",
    call="<tool_call:opensource>",
    name_end="<tool_sep:opensource>",
    key="<arg_key:opensource>",
    key_end="</arg_key:opensource>",
    value="<arg_value:opensource>",
    value_end="</arg_value:opensource>",
    call_end="</tool_call:opensource>",
    end="</tool_calls:opensource>",
)
_INVOCATIONS: Final = TaggedForm(
    start="<minimax:tool_call>",
    call='<invoke name="',
    name_end='">',
    key='<parameter name="',
    key_end='">',
    value_end="</parameter>",
    call_end="</invoke>",
    end="</minimax:tool_call>",
)
_KIMI_CALLS: Final = HeadedForm(
    start="<|tool_calls_section_begin|>",
    call="<|tool_call_begin|>",
    arguments="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
)
DEEPSEEK_CALLS: Final = HeadedForm(
    start="<｜tool▁calls▁begin｜>",
    call="<｜tool▁call▁begin｜>",
    arguments="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
)
_SOLAR_CALLS: Final = HeadedForm(
    start="<|tool_calls|>",
    call="<|tool_call:begin|>",
    name="<|tool_call:name|>",
    arguments="<|tool_call:args|>",
    call_end="<|tool_call:end|>",
    end="<|calls|>",
)
_DSML: Final = "｜DSML｜"
_DSML_CALLS: Final = TaggedForm(
    start=f"<{_DSML}function_calls>",
    call=f'<{_DSML}invoke name="',
    name_end='">',
    key=f'<{_DSML}parameter name="',
    key_end='"',
    kind=' string="',
    value=">",
    value_end=f"</{_DSML}parameter>",
    call_end=f"</{_DSML}invoke>",
    end=f"</{_DSML}function_calls>",
)
_NAMED_PARAMETERS: Final = TaggedForm(
    start="",
    call='<function name="',
    name_end='">',
    key='<param name="',
    key_end='">',
    value_end="</param>",
    call_end="</function>",
)
CDATA: Final = ("<![CDATA[", "]]>")
"""May stand around a value of `<param>`."""
NESTED_MARK: Final = "]<]minimax[>["
"""Stands before each tag of MiniMax M3's calls."""

FORMS: Final[tuple[CallForm, ...]] = (
    _FUNCTIONS,
    replace(_FUNCTIONS, start=""),
    replace(_FUNCTIONS, start="<seed:tool_call>", end="</seed:tool_call>"),
    _INVOCATIONS,
    _HY3_PAIRS,
    _ARGUMENT_PAIRS,
    _KIMI_CALLS,
    replace(_KIMI_CALLS, start=""),
    DEEPSEEK_CALLS,
    replace(DEEPSEEK_CALLS, start="<｜tool▁calls｜>"),
    replace(DEEPSEEK_CALLS, start=""),
    _SOLAR_CALLS,
    replace(_SOLAR_CALLS, start=""),
    _DSML_CALLS,
    replace(_DSML_CALLS, start=f"<{_DSML}tool_calls>", end=f"</{_DSML}tool_calls>"),
    _NAMED_PARAMETERS,
    PYTHON_CALLS,
    EnclosedForm(start="<function_calls>", end="</function_calls>", notation="python"),
    EnclosedForm(start="<|tool_call>", end="<tool_call|>", notation="gemma"),
    EnclosedForm(start="<|tools_prefix|>", end="<|tools_suffix|>", notation="by_name"),
    EnclosedForm(start=f"{NESTED_MARK}<tool_call>", end=f"{NESTED_MARK}</tool_call>", notation="nested"),
)
"""
`<function=f>`: Qwen3.5, Qwen3-Coder, Nemotron 3, Step 3.5, which may leave out the `<tool_call>` before it; Seed-OSS
with other tags around it. `<invoke name="f">`: MiniMax M2. `<arg_key>`: GLM-4.5 and later, Laguna; Hunyuan 3 with a
suffix. `<|tool_call_begin|>`: Kimi K2, Kimi Linear. `[f(a=1)]`: LFM2, OLMo 3. `<|tool_call>`: Gemma 4.
`<|tools_prefix|>`: Apertus. `<｜tool▁calls▁begin｜>`: DeepSeek V3, R1 and V3.1, whose distillations write
`<｜tool▁calls｜>` or no beginning. `｜DSML｜`: DeepSeek V3.2; V4 with `tool_calls`. `<|tool_call:begin|>`: Solar Open.
`<function name="f">`: MiniCPM 5. `]<]minimax[>[`: MiniMax M3.
"""


def marker_of(form: CallForm) -> str:
    """Return the text by which a block of calls is found."""
    return form.start if isinstance(form, EnclosedForm) else form.start or form.call


CALL_STARTS: Final = tuple(dict.fromkeys((*JSON_ENDS, *map(marker_of, FORMS))))
CALL_MARKERS: Final = frozenset(
    {CALL_ID, ARGUMENTS, GEMMA_QUOTE, NESTED_MARK, _DSML, "<|role_sep|>"}
    | {*JSON_ENDS, *JSON_ENDS.values()}
    | {text for form in FORMS for text in astuple(form) if isinstance(text, str)}
) - {""}
"""Texts that may be special tokens and that the reader of calls must see."""
