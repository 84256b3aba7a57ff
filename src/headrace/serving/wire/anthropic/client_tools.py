"""
Tools that the client runs and whose schemas Anthropic publishes: a request names only their type.

Anthropic's models have learned these schemas; other models read them in the prompt, as those of any tool.
Source: Anthropic's documentation, "Bash tool", "Text editor tool", "Memory tool"; anthropic-sdk-python issue 1155.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ClientTool:
    """The description and the schema of a tool for models that have not learned it."""

    description: str
    schema: dict[str, object]


def _string(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


def _commands(
    commands: Sequence[str], properties: Mapping[str, object], *, required: Sequence[str]
) -> dict[str, object]:
    command = {"type": "string", "enum": list(commands)}
    return {"type": "object", "properties": {"command": command, **properties}, "required": ["command", *required]}


_BASH: Final = ClientTool(
    "Run a command in a bash session, which keeps its state between calls.",
    {
        "type": "object",
        "properties": {
            "command": _string("The command to run; required unless `restart` is true."),
            "restart": {"type": "boolean", "description": "Start a new session instead of running a command."},
        },
    },
)
_FILE: Final[Mapping[str, object]] = {
    "path": _string("The file, or for `view` also a folder."),
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "view: the first and the last line, counted from 1; -1: to the end.",
    },
    "file_text": _string("create: the content of the file."),
    "insert_line": {
        "type": "integer",
        "minimum": 0,
        "description": "insert: the line after which the text goes; 0: the start of the file.",
    },
    "old_str": _string("str_replace: the text to replace; it must occur exactly once in the file."),
}
_INSERTING: Final[Mapping[str, object]] = {
    **_FILE,
    "new_str": _string("str_replace: the text to put in its place."),
    "insert_text": _string("insert: the text to insert."),
}
_FILE_COMMANDS: Final = ("view", "create", "str_replace", "insert")
_EDIT: Final = "View, create and edit text files."
_EDITOR: Final = ClientTool(
    _EDIT,
    _commands(
        _FILE_COMMANDS,
        _INSERTING,
        required=("path",),
    ),
)
_EDITOR_WITH_UNDO: Final = ClientTool(
    _EDIT,
    _commands(
        (*_FILE_COMMANDS, "undo_edit"),
        {
            **_FILE,
            "new_str": _string("str_replace: the text to put in its place; insert: the text to insert."),
        },
        required=("path",),
    ),
)
_MEMORY: Final = ClientTool(
    "Read and write files below /memories, which remain between conversations.",
    _commands(
        (*_FILE_COMMANDS, "delete", "rename"),
        {
            **_INSERTING,
            "old_path": _string("rename: the file or folder to rename."),
            "new_path": _string("rename: its new path."),
        },
        required=(),
    ),
)

CLIENT_TOOLS: Final[Mapping[str, ClientTool]] = {
    **dict.fromkeys(("bash_20241022", "bash_20250124"), _BASH),
    **dict.fromkeys(("text_editor_20241022", "text_editor_20250124"), _EDITOR_WITH_UNDO),
    **dict.fromkeys(("text_editor_20250429", "text_editor_20250728"), _EDITOR),
    "memory_20250818": _MEMORY,
}
"""By the type that a request names."""
