"""The input of a tool_use block, which is an object, from arguments that may have been cut off. Pure."""

import re
from typing import Any

import orjson

_TOKEN = re.compile(r'\s+|[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}


def tool_input(arguments: str) -> dict[str, Any]:
    """The object that `arguments` are; of a cut-off one what is whole, as Anthropic's clients read a stream.

    {"city": "Paris", "days": [1, 2 becomes {"city": "Paris", "days": [1, 2]}; what is no JSON becomes {}.
    """
    for text in (arguments, _close(arguments)):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _close(text: str) -> str:
    """The longest beginning of a JSON text that ends behind a value, or an opening bracket, and is then closed."""
    closers: list[str] = []
    end = position = 0
    previous = ""
    while (match := _TOKEN.match(text, position)) is not None:
        token, position = match[0], match.end()
        if token.isspace():
            continue
        if token in _CLOSERS:
            closers.append(_CLOSERS[token])
        elif token in "}]" and closers:
            closers.pop()
        is_key = token[0] == '"' and previous in ("{", ",") and closers[-1:] == ["}"]
        if token not in (",", ":") and not is_key and (position < len(text) or _is_value(token)):
            end = position
        previous = token
    return text[:end] + "".join(reversed(closers))


def _is_value(token: str) -> bool:
    """Whether the last token is whole: `1.` and `tru` are not."""
    if token[0] in "{}[]":
        return True
    try:
        orjson.loads(token)
    except orjson.JSONDecodeError:
        return False
    return True
