"""Reasoning between <think> and </think>. Frontend process.

The families differ in what they write behind it, which matters where the engine itself ends the block; the parser reads
any number of line feeds.
"""

from dataclasses import replace

from engined.frontend.parsing.deepseek import DEEPSEEK_V31
from engined.frontend.parsing.dsml import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41
from engined.frontend.parsing.format import ReasoningFormat
from engined.frontend.parsing.glm import GLM45, GLM47
from engined.frontend.parsing.kimi_k2 import KIMI_K2

_FAMILIES_WITHOUT_SEPARATOR = (DEEPSEEK_V31, DEEPSEEK_V32, DEEPSEEK_V4, DEEPSEEK_V41, GLM47, KIMI_K2)


def _has_tags(template: str) -> bool:
    return "<think>" in template or "</think>" in template


THINK = ReasoningFormat(
    name="think",
    begin="<think>",
    end="</think>",
    separator="\n\n",
    is_written_in=_has_tags,
)

GLM45_THINK = replace(
    THINK,
    name="glm45",
    separator="\n",
    is_written_in=lambda template: _has_tags(template) and GLM45.is_written_in(template),
)

THINK_WITHOUT_SEPARATOR = replace(
    THINK,
    name="think_compact",
    separator="",
    is_written_in=lambda template: (
        _has_tags(template) and any(tools.is_written_in(template) for tools in _FAMILIES_WITHOUT_SEPARATOR)
    ),
)
