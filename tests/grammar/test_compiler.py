"""What compiles, what is refused and why, and that neither takes long nor much."""

import json
import time
from typing import Any

import numpy as np
import pytest

from engined.errors import GrammarError
from engined.grammar import limits
from engined.grammar.cache import ByteBoundCache
from engined.grammar.compiler import GrammarCompiler
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.grammar import GrammarKind, GrammarSpec
from engined.tokenization.tokenizer import ModelTokenizer

NAME = {"type": "object", "properties": {"name": {"enum": ["a", "b"]}}, "required": ["name"]} | {
    "additionalProperties": False
}


def spec(kind: GrammarKind, value: Any, *, any_whitespace: bool = True) -> GrammarSpec:
    text = value if isinstance(value, str) else json.dumps(value)
    return GrammarSpec(kind=kind, value=text, any_whitespace=any_whitespace)


def allowed(matcher: GrammarMatcher) -> set[int]:
    row = np.zeros(matcher.num_mask_bytes, dtype=np.uint8)
    matcher.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist())


def follow(matcher: GrammarMatcher, tokenizer: ModelTokenizer, text: str) -> None:
    for token_id in tokenizer.encode(text):
        assert token_id in allowed(matcher), tokenizer.token_text(token_id)
        matcher.accept_token(token_id)


def chain(length: int) -> dict[str, Any]:
    """A circle of references."""
    definitions = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{(i + 1) % length}"}}}
        for i in range(length)
    }
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        (spec("json_schema", NAME), ['{"name":"a"}', '{"name": "b"}', '{\n  "name": "a"\n}']),
        (spec("json_schema", NAME, any_whitespace=False), ['{"name":"b"}']),
        (spec("json_schema", True), ["[1, 2]", '"x"']),
        (spec("json_object", ""), ["{}", '{"a": [1, {"b": null}]}']),
        (spec("regex", r"[a-c]{2,3}-\d+"), ["ab-12", "abc-7"]),
        (spec("regex", "^abc$"), ["abc"]),
        (spec("choice", ["yes", 'a "quoted"\n\u0001 é \\ line', ""]), ["yes", 'a "quoted"\n\u0001 é \\ line', ""]),
        (spec("lark", 'start: "a" b*\nb: "c"'), ["a", "acc"]),
        (spec("lark", 'root ::= "a" b*\nb ::= "c"'), ["a", "acc"]),
        (
            spec(
                "structural_tag", {"structures": [{"begin": "<f>", "schema": NAME, "end": "</f>"}], "triggers": ["<f"]}
            ),
            ['So: <f>{"name": "a"}</f> done', "nothing of the kind"],
        ),
    ],
)
def test_texts_that_match(
    compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer, grammar: GrammarSpec, texts: list[str]
) -> None:
    compiled = compiler.compile(grammar)
    for text in texts:
        matcher = compiled.new_matcher()
        follow(matcher, grammar_tokenizer, text)
        assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (spec("json_schema", "{"), "not JSON"),
        (spec("json_schema", [1]), "object"),
        (spec("json_schema", False), "something matches"),
        (spec("json_schema", {"type": "strin"}), "strin"),
        (spec("json_schema", {"$ref": "#"}), "no text matches"),
        (spec("json_schema", {"not": {"type": "string"}}), '"not"'),
        (spec("json_schema", {"type": "string", "pattern": "(a"}), "unclosed group"),
        (spec("json_schema", {"type": "string", "pattern": "a" * 9000}), "patterns have 9000 bytes"),
        (spec("json_schema", {"patternProperties": {"a" * 9000: True}}), "patterns have 9000 bytes"),
        (spec("json_schema", nested(100)), "deeper than 64"),
        (spec("json_schema", "[" * 100_000), "not JSON"),
        (spec("json_schema", {"enum": [f"value {i}" for i in range(100_000)]}), "bytes, but at most 131072"),
        (spec("json_schema", '{"const": NaN}'), "cannot be compiled"),
        (spec("regex", "\ud800"), "cannot be compiled"),
        (spec("lark", 'start: "\ud800"'), "cannot be compiled"),
        (spec("regex", "(a"), "unclosed group"),
        (spec("regex", r"(a)\1"), "backreferences"),
        (spec("regex", "(?=a)b"), "look-around"),
        (spec("regex", "(" * 4000 + "a" + ")" * 4000), "nested parentheses"),
        (spec("regex", "a" * 9000), "9000 bytes"),
        (spec("regex", "(a|b*)" * 1300), "limit"),
        (spec("choice", []), "one string"),
        (spec("choice", "7"), "list"),
        (spec("choice", ["\ud800"]), "surrogate"),
        (spec("lark", ""), "Empty"),
        (spec("lark", "start: foo"), "unknown name"),
        (spec("lark", "start: start"), "no text matches"),
        (spec("lark", "root ::= ("), "GBNF"),
        (spec("lark", "start: " + "(" * 8000 + '"a"' + ")" * 8000), "nested"),
        (spec("structural_tag", {}), "structures"),
        (spec("structural_tag", {"structures": [{"begin": "x", "end": ""}], "triggers": ["<f"]}), "triggers"),
    ],
)
def test_refusals(compiler: GrammarCompiler, grammar: GrammarSpec, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(GrammarError, match=reason) as refusal:
        compiler.compile(grammar)
    assert time.monotonic() - started < 5.0 and len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "grammar",
    [
        spec("json_schema", chain(1500)),
        spec("json_schema", nested(30)),
        spec("json_schema", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}),
        spec("choice", [f"choice {i}" for i in range(4000)]),
        spec("regex", "(a+)+$"),
        spec("lark", "start: r0\n" + "\n".join(f'r{i}: "x" r{(i + 1) % 800}' for i in range(800))),
    ],
)
def test_large_ones_compile_on_a_stack_of_their_own(compiler: GrammarCompiler, grammar: GrammarSpec) -> None:
    assert not compiler.compile(grammar).new_matcher().is_finished()


def test_what_takes_too_long_is_given_up(compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer) -> None:
    hurried = GrammarCompiler(lambda: grammar_tokenizer.backend, 49152, (0, 2), deadline_s=0.05)
    slow = spec("lark", "start: T\nA: /a|b*/\nT: " + "A " * 3000)
    hurried.compile(spec("json_object", ""))
    started = time.monotonic()
    with pytest.raises(GrammarError, match="did not compile within 0.05 s"):
        hurried.compile(slow)
    assert time.monotonic() - started < 1.0


def test_whitespace_is_bounded(compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer) -> None:
    matcher = compiler.compile(spec("json_schema", NAME | {"x-guidance": {"whitespace_pattern": " *"}})).new_matcher()
    follow(matcher, grammar_tokenizer, "{")
    [space] = grammar_tokenizer.encode(" ")
    for _ in range(limits.MAX_WHITESPACE):
        assert space in allowed(matcher)
        matcher.accept_token(space)
    assert space not in allowed(matcher)


def test_the_end_is_allowed_exactly_where_the_grammar_accepts(
    compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer
) -> None:
    matcher = compiler.compile(spec("regex", "ab(cd)?")).new_matcher()
    for character, may_end in (("a", False), ("b", True), ("c", False)):
        follow(matcher, grammar_tokenizer, character)
        assert matcher.is_accepting() is may_end and bool({0, 2} & allowed(matcher)) is may_end
        assert not matcher.is_finished()
    follow(matcher, grammar_tokenizer, "d")
    assert matcher.is_finished() and matcher.is_accepting()


def test_forced_runs(compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer) -> None:
    matcher = compiler.compile(spec("json_schema", NAME, any_whitespace=False)).new_matcher()
    forced = matcher.forced_tokens()
    assert '{"name":"'.startswith(grammar_tokenizer.decode(forced)) and len(forced) > 1
    for token_id in forced:
        matcher.accept_token(token_id)
    with pytest.raises(GrammarError):
        matcher.accept_token(grammar_tokenizer.encode("elephant")[0])


def test_matchers_of_one_grammar_are_apart(compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer) -> None:
    compiled = compiler.compile(spec("regex", "[ab]+"))
    first, second = compiled.new_matcher(), compiled.new_matcher()
    follow(first, grammar_tokenizer, "a")
    assert first.is_accepting() and not second.is_accepting()
    assert compiler.compile(spec("regex", "[ab]+")) is compiled


def test_the_cache_is_bounded_in_bytes() -> None:
    cache: ByteBoundCache[str, int] = ByteBoundCache(100)
    cache.put("a", 1, 40)
    cache.put("b", 2, 40)
    assert cache.get("a") == 1
    cache.put("c", 3, 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    cache.put("c", 4, 50)
    assert cache.get("c") == 4 and cache.num_bytes == 90
    cache.put("huge", 5, 101)
    assert cache.get("huge") is None and len(cache) == 2 and cache.num_bytes == 90


def test_compiled_grammars_are_counted_generously(compiler: GrammarCompiler) -> None:
    source = json.dumps({"enum": [f"value{i}" for i in range(5000)]})
    assert limits.compiled_bytes(source) > 30 * len(source)
    for index in range(40):
        compiler.compile(spec("choice", [f"{index} {i}" for i in range(800)]))
    assert compiler._cache.num_bytes <= limits.CACHE_BYTES and len(compiler._cache) < 40
