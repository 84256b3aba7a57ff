"""
Render a list of messages to the text format that a model was trained on, with the Jinja template of its checkpoint.

Templates are untrusted, so they run in a sandbox. The conventions (trimmed blocks, `raise_exception`,
`strftime_now`, `tojson`, loop controls, `{% generation %}`) are those of transformers' `apply_chat_template`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.core.answer_format.formats import AnswerFormat, find_format
from headrace.core.client_text import reason_of
from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import ChatPrompt
from headrace.core.model_kinds import ToolSupport
from headrace.inference.models.call_turns import (
    CallTurns,
    describes_deepseek_calls,
    find_call_turns,
    has_gemma_turns,
    uses_tools,
    with_calls_in_content,
    with_deepseek_tools,
    with_gemma_turn,
    with_results_in_calls,
    with_short_ids,
    with_text_arguments,
    with_tools_as_text,
)
from headrace.inference.models.chat_builtins import BUILT_IN_TEMPLATES
from headrace.inference.models.chat_forms import (
    PROBE_LIMITS,
    ContentForms,
    as_parts,
    find_content_forms,
    joined_chats,
    shows_tools,
    with_one_system,
)
from headrace.inference.models.render_limits import FULL_LIMITS, RenderingTooLong, RenderLimits

if TYPE_CHECKING:
    import jinja2

_TOOL_USE: Final = "tool_use"
"""The name of the template for chats with tools, where a checkpoint has several."""


class ChatTemplate:
    """The chat template of one model; safe to use from several threads."""

    def __init__(
        self,
        templates: str | Mapping[str, str],
        *,
        special_names: Mapping[str, str] | None = None,
        source: str = "the checkpoint",
    ) -> None:
        """
        Wrap Jinja sources, one or several by name (`default`, `tool_use`), without compiling them yet.

        `special_names` are `bos_token` and the other special tokens, which are variables of the template.
        """
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self.source = source
        self._special_names = dict(special_names or {})
        self._tool_support: ToolSupport | None = None
        self._known_forms: dict[str, ContentForms] = {}
        self._known_calls: dict[str, CallTurns] = {}

    def render(self, prompt: ChatPrompt, *, limits: RenderLimits = FULL_LIMITS) -> str:
        """
        Return the text of a chat.

        Raises:
            RenderingTooLong: the template needs more work than the limits allow.
            InvalidRequest: the template refuses the messages (the error has its message), or fails on them.
        """
        # 1. Content as text: the parts of a message joined. Templates that read parts get them back in `_render`.
        prompt = replace(prompt, messages=[_with_plain_content(message) for message in prompt.messages])
        # 2. One system message, if the template shows no others; tools as text, if it shows none (SmolLM2, Llama 2);
        # calls as it reads them.
        prompt = self._with_shown_systems(prompt)
        if uses_tools(prompt):
            prompt = self._with_readable_tools(prompt)
        text = self._choose(prompt.tools)
        # 3. Turns joined, if the template refuses them; 4. refused, if no text of the chat is in the prompt.
        rendered = self._render_turns(text, prompt, limits)
        self._check_shown(text, prompt, rendered)
        if prompt.add_generation_prompt and has_gemma_turns(text):
            rendered = with_gemma_turn(rendered)
        return _open_end(rendered, prompt.messages[-1]) if prompt.continues_final_message else rendered

    def _with_shown_systems(self, prompt: ChatPrompt) -> ChatPrompt:
        if not any(message.get("role") == "system" for message in prompt.messages[1:]):
            return prompt
        if self._forms(self._choose(prompt.tools)).shows_systems:
            return prompt
        return replace(prompt, messages=with_one_system(prompt.messages))

    def _with_readable_tools(self, prompt: ChatPrompt) -> ChatPrompt:
        if self.tool_support == "generic":
            text = self._choose(None)
            reads_system = "system" in self._forms(text).shown
            if not (describes_deepseek_calls(text) and self._calls(text).are_shown):
                return with_tools_as_text(prompt, reads_system=reads_system)
            prompt = with_deepseek_tools(prompt, reads_system=reads_system)
        if not any(message.get("tool_calls") for message in prompt.messages):
            return prompt
        text = self._choose(prompt.tools)
        calls = self._calls(text)
        if not calls.are_shown:
            return with_calls_in_content(prompt, text)
        if calls.have_text:
            prompt = with_text_arguments(prompt)
        if not calls.take_long_ids:
            prompt = with_short_ids(prompt)
        return with_results_in_calls(prompt) if has_gemma_turns(text) else prompt

    @property
    def has_effort_levels(self) -> bool:
        return any("reasoning_effort" in text for text in self.templates.values())

    @property
    def tool_support(self) -> ToolSupport:
        """Native if the template shows tools to the model."""
        if self._tool_support is None:
            may_show = any("tools" in text for text in self.templates.values())  # saves the import of Jinja
            is_native = _TOOL_USE in self.templates or (may_show and shows_tools(self._probe))
            self._tool_support = "native" if is_native else "generic"
        return self._tool_support

    def _render_turns(self, text: str, prompt: ChatPrompt, limits: RenderLimits) -> str:
        """Render a chat; if the template refuses its turns, with neighbouring ones joined."""
        refusals: list[InvalidRequest] = []
        for messages in chain([prompt.messages], joined_chats(prompt.messages)):
            try:
                return self._render(text, replace(prompt, messages=messages), limits)
            except RenderingTooLong:
                raise
            except InvalidRequest as refusal:
                refusals.append(refusal)
        raise refusals[0]  # of the chat as it was sent

    def _render(self, text: str, prompt: ChatPrompt, limits: RenderLimits) -> str:
        """Render a chat with content as text, or as a list of parts if the template reads only that."""
        known = self._known_forms.get(text)
        if known is None or not known.in_parts:
            try:
                rendered = self._render_messages(text, prompt, prompt.messages, limits)
            except RenderingTooLong:
                raise  # without further work for this template
            except InvalidRequest:
                if not self._forms(text).in_parts:
                    raise
            else:
                if not self._forms(text).in_parts:
                    return rendered
        in_parts = self._forms(text).in_parts
        return self._render_messages(text, prompt, [as_parts(message, in_parts) for message in prompt.messages], limits)

    def _render_messages(
        self, text: str, prompt: ChatPrompt, messages: Sequence[Mapping[str, object]], limits: RenderLimits
    ) -> str:
        values = {
            **self._special_names,
            "documents": None,
            **_with_thinking_names(prompt.template_values),
            "messages": [dict(message) for message in messages],
            "tools": None if prompt.tools is None else [*prompt.tools],
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        return _render(_compiled(text, self.source), values, limits)

    def _probe(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] | None, text: str = ""
    ) -> str:
        prompt = ChatPrompt(messages=messages, tools=tools)
        return self._render_messages(text or self._choose(tools), prompt, messages, PROBE_LIMITS)

    def _forms(self, text: str) -> ContentForms:
        """Return the forms of content that a template reads, found by its first chat."""
        if text not in self._known_forms:
            self._known_forms[text] = find_content_forms(partial(self._probe, text=text))
        return self._known_forms[text]

    def _calls(self, text: str) -> CallTurns:
        if text not in self._known_calls:
            self._known_calls[text] = find_call_turns(partial(self._probe, text=text))
        return self._known_calls[text]

    def _check_shown(self, text: str, prompt: ChatPrompt, rendered: str) -> None:
        """Refuse a prompt without the text of any message: the template reads content in an unknown form."""
        if "user" in self._forms(text).shown or "messages" not in text:
            return
        contents = [str(message.get("content") or "").strip() for message in prompt.messages]
        if any(contents) and not any(content and content in rendered for content in contents):
            raise InvalidRequest(
                f"The chat template of {self.source} shows the text of no message; expected one that reads content "
                "as a text or as a list of parts. Start the server with another --chat-template.",
                param="messages",
            )

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The separators of reasoning in answers; None: the model has none."""
        return find_format(self.templates.values())

    def check(self) -> None:
        """Compile every template; raises `InvalidRequest` if one does not parse."""
        for text in self.templates.values():
            _compiled(text, self.source)

    def _choose(self, tools: Sequence[Mapping[str, object]] | None) -> str:
        if tools and _TOOL_USE in self.templates:
            return self.templates[_TOOL_USE]
        if "default" in self.templates:
            return self.templates["default"]
        names = ", ".join(sorted(self.templates))
        raise InvalidRequest(f"{self.source} has several chat templates ({names}) and none is called default.")


def override_template(configured: str, special_names: Mapping[str, str]) -> ChatTemplate:
    """
    Return the template that a user configured: a built-in name, the path of a file, or Jinja source.

    Raises `SettingsError` if it is none of these, or does not parse.
    """
    text, source = BUILT_IN_TEMPLATES.get(configured), f"the built-in chat template {configured}"
    if text is None and "{" in configured:
        text, source = configured, "the configured chat template"
    if text is None:
        path, source = Path(configured), f"the chat template {configured}"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            names = ", ".join(sorted(BUILT_IN_TEMPLATES))
            raise SettingsError(
                f"The chat template {str(path)!r} is neither a readable file nor a built-in name ({names}): "
                f"{reason_of(exc)}. Give a path, a name, or the Jinja source itself."
            ) from exc
    template = ChatTemplate(text, special_names=special_names, source=source)
    try:
        template.check()
    except InvalidRequest as exc:
        raise SettingsError(exc.message) from exc
    return template


def _with_thinking_names(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the variables of a request with the other names that templates have for `enable_thinking`."""
    if "enable_thinking" not in values:
        return values
    is_on = bool(values["enable_thinking"])  # DeepSeek V3.1 and Granite 3; MiniMax M3
    return {"thinking": is_on, "thinking_mode": "enabled" if is_on else "disabled", **values}


def _with_plain_content(message: Mapping[str, object]) -> dict[str, object]:
    """Join content parts to one text: the templates of text models expect a string."""
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return dict(message)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else part
        if (kind is not None and kind != "text") or not isinstance(text, str):
            raise InvalidRequest(
                f"A message has a content part of type {kind!r:.80}; this model takes text only.", param="messages"
            )
        texts.append(text)
    return {**message, "content": "\n".join(texts)}


def _open_end(rendered: str, message: Mapping[str, object]) -> str:
    """Cut a rendered chat after the text of its last message; templates may strip white space around it."""
    content = _with_plain_content(message).get("content")
    if not isinstance(content, str):
        raise InvalidRequest("The last message has no text, so that it cannot be continued.", param="messages")
    start = rendered.rfind(content.strip())
    if start < 0:
        raise InvalidRequest(
            "The chat template changes the text of the last message, so that it cannot be continued.", param="messages"
        )
    kept = content.lstrip() if rendered.startswith(content.lstrip(), start) else content.strip()
    return rendered[: start + len(kept)]


def _compiled(text: str, source: str) -> "jinja2.Template":
    import jinja2

    from headrace.inference.models.chat_sandbox import compile_template

    try:
        return compile_template(text)
    except jinja2.TemplateSyntaxError as exc:
        raise InvalidRequest(
            f"In {source}, line {exc.lineno} is not valid Jinja: {exc.message}.", param="chat_template"
        ) from exc
    except (RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as exc:
        # Python compiles what Jinja makes of a template: at most 20 nested loops, 100 nested brackets.
        reason = str(exc) or type(exc).__name__
        raise InvalidRequest(f"The template of {source} is too complex: {reason}.", param="chat_template") from exc


def _render(template: "jinja2.Template", values: Mapping[str, object], limits: RenderLimits) -> str:
    import jinja2

    from headrace.inference.models.chat_budget import rendering

    try:
        with rendering(limits) as write:
            pieces = []
            for piece in template.generate(values):  # may go on without end
                write(len(piece))
                pieces.append(piece)
            return "".join(pieces)
    except RenderingTooLong:
        raise
    except jinja2.TemplateError as exc:
        raise InvalidRequest(exc.message or "The chat template refused the messages.", param="messages") from exc
    except Exception as exc:
        # A template is foreign code and can raise any exception.
        raise InvalidRequest(
            f"The chat template failed on these messages: {type(exc).__name__}: {exc}.", param="messages"
        ) from exc
