"""Chat templates that come with Headrace, for checkpoints that have none; chosen by name with `--chat-template`."""

from types import MappingProxyType
from typing import Final

LLAMA2: Final = """\
{%- set system = messages[0]['content'] if messages and messages[0]['role'] == 'system' else none -%}
{%- for message in (messages if system is none else messages[1:]) -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {%- if message['role'] == 'assistant' -%}
        {{- ' ' + message['content'] | trim + ' ' + eos_token -}}
    {%- else -%}
        {%- set content = message['content'] -%}
        {%- if loop.first and system is not none -%}
            {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content -%}
        {%- endif -%}
        {{- bos_token + '[INST] ' + content | trim + ' [/INST]' -}}
    {%- endif -%}
{%- endfor -%}
"""
"""The prompt format of Llama 2 Chat. Source: `llama/generation.py` of facebookresearch/llama."""

CHATML: Final = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

BUILT_IN_TEMPLATES: Final = MappingProxyType({"llama2": LLAMA2, "chatml": CHATML})
