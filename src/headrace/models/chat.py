"""
Render a list of messages to the text format that a model was trained on, with the Jinja template of its checkpoint.

Templates are untrusted, so they run in a sandbox. The conventions (trimmed blocks, `raise_exception`,
`strftime_now`, `tojson`, loop controls, `{% generation %}`) are those of transformers' `apply_chat_template`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.answer_format.formats import AnswerFormat, find_format
from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import ChatPrompt
from headrace.models.chat_builtins import BUILT_IN_TEMPLATES
from headrace.models.render_limits import FULL_LIMITS, RenderingTooLong, RenderLimits

if TYPE_CHECKING:
    import jinja2


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
        Wrap templates without compiling them yet.

        Args:
            templates: Jinja source, or several by name (`default`, `tool_use`).
            special_names: `bos_token` and the other special tokens, as variables of the template.
            source: the origin of the template, for error messages.
        """
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self.source = source
        self._special_names = dict(special_names or {})

    def render(self, prompt: ChatPrompt, *, limits: RenderLimits = FULL_LIMITS) -> str:
        """
        Return the text of a chat.

        Raises:
            RenderingTooLong: the template needs more work than the limits allow.
            InvalidRequest: the template refuses the messages (the error has its message), or fails on them.
        """
        text = self._choose(prompt)
        values = {
            **self._special_names,
            **prompt.template_values,
            "messages": [_with_plain_content(message) for message in prompt.messages],
            "tools": prompt.tools,
            "documents": None,
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        rendered = _render(_compiled(text, self.source), values, limits)
        return _open_end(rendered, prompt.messages[-1]) if prompt.continues_final_message else rendered

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The separators of reasoning in answers; None: the model has none."""
        return find_format(self.templates.values())

    def check(self) -> None:
        """Compile every template; raises `InvalidRequest` if one does not parse."""
        for text in self.templates.values():
            _compiled(text, self.source)

    def _choose(self, prompt: ChatPrompt) -> str:
        if prompt.tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        if "default" in self.templates:
            return self.templates["default"]
        names = ", ".join(sorted(self.templates))
        raise InvalidRequest(f"{self.source} has several chat templates ({names}) and none is called default.")


def override_template(configured: str, special_names: Mapping[str, str]) -> ChatTemplate:
    """
    Return the template that a user configured: a built-in name, the path of a file, or Jinja source.

    Raises:
        SettingsError: it is none of these, or does not parse.
    """
    text, source = BUILT_IN_TEMPLATES.get(configured), f"the built-in chat template {configured}"
    if text is None and "{" in configured:
        text, source = configured, "the configured chat template"
    if text is None:
        text, source = _read_template(Path(configured)), f"the chat template {configured}"
    template = ChatTemplate(text, special_names=special_names, source=source)
    try:
        template.check()
    except InvalidRequest as exc:
        raise SettingsError(exc.message) from exc
    return template


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        names = ", ".join(sorted(BUILT_IN_TEMPLATES))
        raise SettingsError(
            f"The chat template {str(path)!r} is neither a readable file nor a built-in name ({names}): {exc}. "
            "Give a path, a name, or the Jinja source itself."
        ) from exc


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

    from headrace.models.chat_sandbox import compile_template

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

    from headrace.models.chat_budget import rendering

    try:
        with rendering(limits) as write:
            return "".join(_counted(template.generate(values), write))
    except RenderingTooLong:
        raise
    except jinja2.TemplateError as exc:
        raise InvalidRequest(exc.message or "The chat template refused the messages.", param="messages") from exc
    except Exception as exc:
        # A template is foreign code and can raise any exception.
        raise InvalidRequest(
            f"The chat template failed on these messages: {type(exc).__name__}: {exc}.", param="messages"
        ) from exc


def _counted(pieces: Iterable[str], write: Callable[[int], None]) -> Iterator[str]:
    """Yield the pieces, and stop a template that writes without end."""
    for piece in pieces:
        write(len(piece))
        yield piece
