"""Random walks through the masks of grammars of tool calls, and what a parser makes of the texts."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engined.frontend.parsing.events import ContentText, ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.parser import ParserContext
from engined.grammar.compiler import CompiledGrammar
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.tool_grammar import GrammarTool
from engined.tokenization.tokenizer import ModelTokenizer, SpecialIds

MOST_TOKENS = 400
_LONG = 60
"""From here on a walk heads for its end."""


@dataclass(frozen=True)
class Call:
    """One call that a parser found."""

    name: str
    arguments: str
    is_whole: bool


class Walker:
    """Draws tokens that grammars allow."""

    def __init__(self, backend: Tokenizer, eos_token_ids: Sequence[int], seed: int) -> None:
        self._tokenizer = ModelTokenizer(backend, SpecialIds(named={}))
        self._eos_token_ids = list(eos_token_ids)
        self._draw = random.Random(seed)

    def walk(
        self, grammar: CompiledGrammar, phrases: Sequence[str], *, prefix: str = "", is_forced_at_once: bool = False
    ) -> str | None:
        """A text that the grammar lets end; None if there is no end within MOST_TOKENS. `phrases` are tried often."""
        matcher = grammar.new_matcher()
        token_ids = self.take(matcher, self._tokenizer.encode(prefix))
        while len(token_ids) < MOST_TOKENS:
            if matcher.is_finished():
                assert matcher.is_accepting()
                return self._text(token_ids)
            if is_forced_at_once and (forced := matcher.forced_tokens()):
                token_ids += self.take(matcher, forced)
                continue
            allowed = _allowed(matcher)
            may_end = allowed[self._eos_token_ids].any()
            assert may_end == matcher.is_accepting()
            allowed[self._eos_token_ids] = False
            is_over = not allowed.any()
            assert may_end or not is_over, f"a dead end after {self._text(token_ids)!r}"
            if may_end and (is_over or self._draw.random() < 0.2 + len(token_ids) / MOST_TOKENS):
                return self._text(token_ids)
            token_ids += self._step(matcher, allowed, phrases, is_closing=len(token_ids) > _LONG)
        return None

    def _step(
        self, matcher: GrammarMatcher, allowed: NDArray[np.bool_], phrases: Sequence[str], *, is_closing: bool
    ) -> list[int]:
        if self._draw.random() < (0.9 if is_closing else 0.3):
            for phrase in self._draw.sample(phrases, len(phrases)):
                if taken := self.take(matcher, self._tokenizer.encode(phrase)):
                    return taken
        return self.take(matcher, [self._draw.choice(np.flatnonzero(allowed).tolist())])

    def take(self, matcher: GrammarMatcher, token_ids: list[int]) -> list[int]:
        """As many of these tokens as are allowed."""
        taken = []
        for token_id in token_ids:
            if matcher.is_finished() or not _allowed(matcher)[token_id]:
                break
            matcher.accept_token(token_id)
            taken.append(token_id)
        return taken

    def _text(self, token_ids: list[int]) -> str:
        return b"".join(self._tokenizer.token_bytes(token_id) for token_id in token_ids).decode()


def _allowed(matcher: GrammarMatcher) -> NDArray[np.bool_]:
    row = np.zeros(matcher.num_mask_bytes, dtype=np.uint8)
    matcher.fill_mask(row)
    return np.unpackbits(row, bitorder="little").astype(np.bool_)


def phrases_of(syntax: CallSyntax) -> list[str]:
    """What closes something, and what begins a call."""
    tags = [
        syntax.trigger or "",
        syntax.tagged.after_value if syntax.tagged else "",
    ]
    return [text for text in ('"', "}", "]", '": ', *tags) if text]


def parse(tool_format: ToolFormat, text: str, tools: Sequence[GrammarTool]) -> tuple[str, list[Call]]:
    """Content and calls of a text."""
    parser = tool_format.new_parser(ParserContext(tools={tool.name: tool.parameters for tool in tools}))
    events = [*parser.feed(text), *parser.finish()]
    content = "".join(event.text for event in events if isinstance(event, ContentText))
    whole = {event.index for event in events if isinstance(event, ToolCallEnd)}
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallArguments):
            arguments[event.index] = arguments.get(event.index, "") + event.text
    begun = [event for event in events if isinstance(event, ToolCallBegin)]
    return content, [Call(event.name, arguments.get(event.index, ""), event.index in whole) for event in begun]


def check_calls(calls: Sequence[Call], tools: Sequence[GrammarTool]) -> None:
    """Each is whole, one of the tools, and its arguments are an object that validates."""
    schemas: dict[str, Any] = {tool.name: tool.parameters for tool in tools}
    for call in calls:
        assert call.is_whole, call
        arguments = json.loads(call.arguments)
        assert isinstance(arguments, dict), call
        jsonschema.validate(arguments, schemas[call.name])
