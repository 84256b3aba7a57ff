"""
The ways in which chat models separate reasoning from the answer, and announce calls: data.

Two kinds of reasoning, recognised in the chat template. Most models write theirs between two tags. gpt-oss writes
messages with headers (OpenAI's Harmony format):
`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`.

Source: chat templates of the models; vLLM `reasoning/`; openai-harmony `docs/format.md`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
MESSAGE_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
_ASSISTANT: Final = f"{START}assistant"
_SPECIAL: Final = re.compile(r"<\|\w+\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The separators of one family; `channels` stands for Harmony, which needs no others."""

    name: str
    start: str = ""
    """Begins the reasoning, unless the prompt ends with it."""
    end: str = ""
    """Ends the reasoning."""
    label: str = ""
    """A word after the start that is not part of the reasoning."""
    wrapper: tuple[str, str] | None = None
    """Tags around the content, which are left out."""
    wraps_always: bool = False
    """The tags around the content also stand in answers without reasoning: no other text is like them."""
    filler: str = ""
    """The header of a message for the content or the calls, which is left out."""
    signs: tuple[str, ...] = ()
    """The texts by which a chat template is recognised; empty: the end and the tags around the content."""

    @property
    def has_channels(self) -> bool:
        """True for messages with headers, False for tags."""
        return self.name == "harmony"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens and that the parser must see."""
        if self.has_channels:
            return (START, CHANNEL, CONSTRAIN, MESSAGE, *MESSAGE_ENDS)
        return (self.start, self.end, *(self.wrapper or ()), *_SPECIAL.findall(self.filler))

    def endings(self, message: str) -> tuple[str, ...]:
        """
        Return the texts that end the reasoning after `message`, for the first time and for later ones.

        In Harmony, the model may then call a function, or begin to reason again, and is made to answer.
        """
        if not self.has_channels:
            return (message + self.end,)
        end = MESSAGE_ENDS[0]
        return message + end, f"{end}{_ASSISTANT}{CHANNEL}final{MESSAGE}"

    def opening(self, prompt: str) -> str:
        """Return the end of a rendered prompt as far as the answer continues it: a tag that the template wrote."""
        if self.has_channels:
            header = prompt.rpartition(_ASSISTANT)[2]
            return header if _ASSISTANT in prompt and not any(end in header for end in MESSAGE_ENDS) else ""
        tail = prompt.rstrip()
        if self.filler:  # other messages end as the reasoning does
            tail = tail.removesuffix(self.filler)
            return self.start + self.end if tail.endswith(self.start + self.end) else ""
        if tail.endswith(self.start + self.label):
            return self.start + self.label
        return self.start + self.end if tail.endswith(self.end) else ""


_THINK: Final = ("<think>", "</think>")
REASONING_TAGS: Final = AnswerFormat(name="think", start=_THINK[0], end=_THINK[1])

FORMATS: Final = (
    AnswerFormat(name="harmony", signs=(CHANNEL, MESSAGE, _ASSISTANT)),
    AnswerFormat(name="minimax", start=_THINK[0], end=_THINK[1], signs=(_THINK[1], "<minimax:tool_call>")),
    AnswerFormat(name="think-response", start=_THINK[0], end=_THINK[1], wrapper=("<response>", "</response>")),
    AnswerFormat(name="think-answer", start=_THINK[0], end=_THINK[1], wrapper=("<answer>", "</answer>")),
    AnswerFormat(name="seed-think", start="<seed:think>", end="</seed:think>"),
    AnswerFormat(name="mistral", start="[THINK]", end="[/THINK]"),
    AnswerFormat(
        name="cohere",
        start="<|START_THINKING|>",
        end="<|END_THINKING|>",
        wrapper=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        wraps_always=True,
    ),
    AnswerFormat(
        name="cohere-text",
        start="<|START_THINKING|>",
        end="<|END_THINKING|>",
        wrapper=("<|START_TEXT|>", "<|END_TEXT|>"),
        wraps_always=True,
    ),
    AnswerFormat(
        name="solar",
        start="<|think|>",
        end="<|end|>",
        wrapper=("<|content|>", "<|end|>"),
        wraps_always=True,
        filler="<|begin|>assistant",
        signs=("<|think|>", "<|begin|>assistant"),
    ),
    AnswerFormat(name="minimax-m3", start="<mm:think>", end="</mm:think>"),
    AnswerFormat(name="gemma", start="<|channel>", label="thought", end="<channel|>"),
    AnswerFormat(name="apertus", start="<|inner_prefix|>", end="<|inner_suffix|>"),
    AnswerFormat(
        name="hy3", start="<think:opensource>", end="</think:opensource>", signs=("</think{}>", ":opensource")
    ),
    REASONING_TAGS,
)
"""
harmony: gpt-oss. minimax: MiniMax M2, whose template has `<response>` around the results of tools.
think-response: Granite 3.3, ERNIE 4.5. think-answer: Hunyuan. seed-think: Seed-OSS. mistral: Magistral, Ministral 3.
cohere: Command R7B and A. cohere-text: Cohere 2 MoE. solar: Solar Open. minimax-m3: MiniMax M3. gemma: Gemma 4.
apertus: Apertus. hy3: Hunyuan 3, whose template adds the suffix.
think: Qwen3 and later, SmolLM3, DeepSeek-R1 and later, the distillations of R1, GLM-4.5 and later, OLMo 3, LFM2.5,
Nemotron 3, Kimi K2 Thinking, Laguna, MiniCPM 5.
"""


def find_format(templates: Iterable[str]) -> AnswerFormat | None:
    """
    Return the first format whose separators are in one of the chat templates; None: no reasoning.

    The start tag may be missing: some models write it themselves and their template only cuts at the end tag.
    """
    texts = tuple(templates)
    for known in FORMATS:
        signs = known.signs or (known.end, *(known.wrapper or ()))
        if any(all(sign in text for sign in signs) for text in texts):
            return known
    return None
