"""64 hostile constraints: each is compiled or refused in bounded time, and an accepted one is quick to follow."""

import json
import random
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engined.checkpoint.load import load_model_info
from engined.errors import GrammarError
from engined.grammar.compiler import CompiledGrammar, GrammarCompiler
from engined.grammar.limits import CACHE_BYTES, COMPILE_SECONDS
from engined.grammar.matcher import mask_bytes
from engined.protocol.grammar import GrammarKind, GrammarSpec
from engined.tokenization.tokenizer import load_tokenizer

NUM_TOKENS = 20
# The compilation's own deadline, and what a loaded machine adds.
COMPILE_WALL_SECONDS = COMPILE_SECONDS + 1.0
# Of the whole process: a compilation that was given up goes on for a while, and never for long.
COMPILE_CPU_SECONDS = 5.0
MASK_CPU_SECONDS = 0.25

Hostile = tuple[str, GrammarKind, str]


def regex(name: str, pattern: str) -> Hostile:
    return (f"regex: {name}", "regex", pattern)


def lark(name: str, text: str) -> Hostile:
    return (f"lark: {name}", "lark", text)


def schema(name: str, value: Any) -> Hostile:
    return (f"schema: {name}", "json_schema", value if isinstance(value, str) else json.dumps(value))


def nested(levels: int, inner: Any, wrap: Any) -> Any:
    """`inner`, wrapped so many times."""
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def doubling(levels: int, keyword: str) -> dict[str, Any]:
    """Definitions of which each one refers twice to the one below: 2**levels paths from few bytes."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        if keyword == "properties":
            definitions[f"d{level}"] = {"type": "object", "properties": {"a": below, "b": below}, "required": ["a"]}
        elif keyword == "prefixItems":
            definitions[f"d{level}"] = {"type": "array", "prefixItems": [below, below], "minItems": 2}
        else:
            definitions[f"d{level}"] = {keyword: [below, below]}
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def objects(number: int, **more: Any) -> dict[str, Any]:
    """An object of so many optional properties."""
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(number)}, **more}


REGEXES = [
    regex("nested quantifiers", "(a*)*b"),
    regex("nested plus", "((a+)+)+$"),
    regex("nested alternations", "((a|aa)+)+b"),
    regex("ten levels of plus", nested(10, "a", lambda inner: f"({inner})+")),
    regex("a thousand levels of groups", nested(1000, "a", lambda inner: f"({inner})")),
    regex("four thousand levels of groups", nested(4000, "a", lambda inner: f"({inner}")),
    regex("repeat of repeat", "((a{1,100}){1,100}){1,100}"),
    regex("exact repeats", "((a{50}){50}){50}"),
    regex("giant bound", "a{1000000}"),
    regex("giant optional bound", "a{0,1000000}"),
    regex("overflowing bound", "a{99999999999999999999}"),
    regex("the blow-up of subset construction", "(a|b)*a(a|b){24}"),
    regex("a larger blow-up", "[ab]*a[ab]{200}c"),
    regex("blow-up in the middle", ".*a.{30}b.{30}c"),
    regex("any, many times", "(.*){40}x"),
    regex("many wildcards", ".*".join("abcdefghijklmnopqrstuvwxyz")),
    regex("long alternation", "|".join(f"word{i}" for i in range(900))),
    regex("alternation of suffixes", "|".join("a" * i + "b" for i in range(1, 120))),
    regex("unicode letters", r"\p{L}{1,500}"),
    regex("unicode words", r"(\w+\s?){200}"),
    regex("negated unicode", r"[^\p{L}\p{N}]{300}"),
    regex("every class", r"[\s\S]{2000}"),
    regex("case insensitive unicode", r"(?i)[\p{Lu}ſK]{200}"),
    regex("lookahead", "(?=a)(?!b)a*"),
    regex("back reference", r"(a*)\1"),
    regex("unbalanced", "(" * 500),
    regex("nothing", "[^\\s\\S]"),
    regex("empty", ""),
    regex("above the limit", "a" * 100_000),
]

LARKS = [
    lark("left recursion", 'start: start "a" | "a"'),
    lark("endless recursion", "start: start"),
    lark("mutual recursion", "start: a\na: b\nb: a"),
    lark("ambiguous", 'start: start start | "a"'),
    lark("three times ambiguous", 'start: start start start | "a" |'),
    lark("hidden left recursion", 'start: e start "a" | "b"\ne: |'),
    lark("a chain of rules", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(700)) + '\nr700: "a"'),
    lark("doubling rules", "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)) + '\nr60: "a"'),
    lark("doubling terminals", "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)) + '\nT40: "a"'),
    lark(
        "optional doubling", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}? r{i + 1}?" for i in range(30)) + '\nr30: "a"'
    ),
    lark("giant repeat", 'start: "a"~1..1000000'),
    lark("repeat of repeats", 'start: r~500\nr: s~500\ns: "a"~500'),
    lark("many alternatives", "start: " + " | ".join(f'"k{i}"' for i in range(1500))),
    lark("no start", 'a: "a"'),
    lark("unknown rule", "start: nowhere"),
    lark("recursive terminal", 'start: T\nT: "a" T | "b"'),
    lark("overlapping terminals", "start: " + " | ".join(f"/[a-z]{{{i},{i + 40}}}/" for i in range(1, 60))),
    lark("no grammar", "\x00\x01(((("),
]

SCHEMAS = [
    schema("doubling anyOf", doubling(40, "anyOf")),
    schema("doubling allOf", doubling(25, "allOf")),
    schema("doubling oneOf", doubling(25, "oneOf")),
    schema("doubling properties", doubling(40, "properties")),
    schema("doubling items", doubling(40, "prefixItems")),
    schema("recursion without end", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    schema("a reference to itself", {"$ref": "#"}),
    schema("sixty levels", nested(55, {"type": "integer"}, lambda inner: {"items": inner})),
    schema("five thousand levels", '{"items":' * 5000 + "{}" + "}" * 5000),
    schema("a large enum", {"enum": [f"value number {i}" for i in range(4000)]}),
    schema("a giant enum", {"enum": list(range(1_000_000))}),
    schema("many properties", objects(1500)),
    schema("product of objects", {"allOf": [{"anyOf": [objects(3), objects(4)]} for _ in range(12)]}),
    schema("long strings", {"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}),
    schema("long arrays", {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    schema("large multiple", {"type": "integer", "multipleOf": 99_999_999_999}),
    schema("patterns intersected", {"allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(3, 15)]}),
]

HOSTILE = [*REGEXES, *LARKS, *SCHEMAS]


@dataclass(frozen=True)
class Subject:
    """A compiler for the default model's 49,152 tokens, whose tokenizer has been read."""

    compiler: GrammarCompiler
    vocab_size: int


@pytest.fixture(scope="module")
def subject(default_gguf: Path) -> Iterator[Subject]:
    info = load_model_info(default_gguf)
    compiler = GrammarCompiler(lambda: load_tokenizer(info).backend, info.vocab_size, info.eos_token_ids)
    compiler.compile(GrammarSpec(kind="regex", value="warm"))
    yield Subject(compiler, info.vocab_size)
    # What was given up at the deadline ends by itself.
    for thread in threading.enumerate():
        if thread.name == "grammar-compilation":
            thread.join(30)
            assert not thread.is_alive()


def test_there_are_64() -> None:
    assert len({name for name, _, _ in HOSTILE}) == len(HOSTILE) == 64


@pytest.mark.parametrize(("kind", "value"), [item[1:] for item in HOSTILE], ids=[item[0] for item in HOSTILE])
def test_is_compiled_or_refused_within_the_bound(subject: Subject, kind: GrammarKind, value: str) -> None:
    started, started_cpu = time.monotonic(), time.process_time()
    grammar, refusal = None, ""
    try:
        grammar = subject.compiler.compile(GrammarSpec(kind=kind, value=value))
    except GrammarError as error:
        refusal = str(error)
    wall, cpu = time.monotonic() - started, time.process_time() - started_cpu
    assert wall < COMPILE_WALL_SECONDS and cpu < COMPILE_CPU_SECONDS, refusal
    if grammar is None:
        assert refusal and len(refusal) < 1000
    else:
        assert slowest_mask(grammar, subject.vocab_size) < MASK_CPU_SECONDS


def slowest_mask(grammar: CompiledGrammar, vocab_size: int) -> float:
    """CPU seconds of the slowest of the masks along random tokens; a matcher that gives up ends the walk."""
    draw = random.Random(64)
    matcher = grammar.new_matcher()
    row: NDArray[np.uint8] = np.zeros(mask_bytes(vocab_size), dtype=np.uint8)
    slowest = 0.0
    for _ in range(NUM_TOKENS):
        started = time.thread_time()
        try:
            matcher.fill_mask(row)
        except GrammarError:
            return max(slowest, time.thread_time() - started)
        slowest = max(slowest, time.thread_time() - started)
        allowed = np.flatnonzero(np.unpackbits(row, bitorder="little"))
        token_id = int(draw.choice(allowed))
        started = time.thread_time()
        if matcher.is_accepting() and len(allowed) == 1:
            break
        try:
            matcher.accept_token(token_id)
        except GrammarError:
            break
        if matcher.is_finished():
            break
        slowest = max(slowest, time.thread_time() - started)
    return slowest


def test_compiled_grammars_are_kept_within_bounds(subject: Subject) -> None:
    before = resident_bytes()
    for number in range(400):
        properties = {f"p{number}_{i}": {"type": "string", "maxLength": i + 1} for i in range(60)}
        value = json.dumps({"type": "object", "properties": properties})
        subject.compiler.compile(GrammarSpec(kind="json_schema", value=value))
    assert resident_bytes() - before < 2 * CACHE_BYTES


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
