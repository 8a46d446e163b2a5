"""The jinja environment that chat templates are written for. Frontend process; used by `chat_template`.

It offers what the transformers library offers, sandboxed: no private attributes, no changes to the data it is given,
and no operator that makes huge values out of small ones.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_VALUE_LENGTH = 16 << 20
"""Longest string or list that a template may build by multiplication."""
MAX_POWER_BITS = 4096
"""Size of the largest integer that a template may build by exponentiation."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is simply rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with the filters and globals that chat templates expect."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse `"a" * 1000000000` and `9 ** 9 ** 9` before they are computed."""
        if operator == "**" and isinstance(left, int) and left.bit_length() * right > MAX_POWER_BITS:
            raise SecurityError(f"an integer has more than {MAX_POWER_BITS} bits")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and len(value) * times > MAX_VALUE_LENGTH:
                    raise SecurityError(f"a value is longer than {MAX_VALUE_LENGTH}")
        return super().call_binop(context, operator, left, right)


def read_names(template: nodes.Template) -> frozenset[str]:
    """All names under which a template may look something up: its attributes, and its texts."""
    attributes = (node.attr for node in template.find_all(nodes.Getattr))
    texts = (node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str))
    return frozenset((*attributes, *texts))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja's own filter would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
