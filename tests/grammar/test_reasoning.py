"""Reasoning before an answer: where the grammar begins, when the thinking ends. Matchers alone, and in the engine."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engined.checkpoint.load import load_model_info
from engined.errors import GrammarError
from engined.grammar.compiler import GrammarCompiler
from engined.grammar.matcher import GrammarMatcher
from engined.grammar.reasoning_markers import ReasoningTokenizer
from engined.grammar.reasoning_matcher import ReasoningMatcher
from engined.protocol.engine import FinishReason
from engined.protocol.grammar import GrammarSpec
from engined.protocol.reasoning import ReasoningSpec
from engined.tokenization.byte_level import CHARACTER_OF_BYTE
from engined.tokenization.tokenizer import ModelTokenizer, SpecialIds
from tests.grammar.constrained_engine import ConstrainedEngine

EOS, BEGIN, END = 256, 257, 258
TAIL, PAST = 259, 260
"""Tokens of several characters: `nk>`, which may close the reasoning, and `k>{`, which would write past its end."""
VOCAB_SIZE = 261
DIGIT = GrammarSpec(kind="regex", value="[0-9]")
NUMBER = GrammarSpec(kind="json_schema", value='{"type": "integer"}')


def spec(**fields: object) -> ReasoningSpec:
    return ReasoningSpec(**{"begin": "<think>", "end": "</think>", "separator": "\n\n", "start": "open"} | fields)  # type: ignore[arg-type]


def byte_tokenizer(*, has_tags: bool) -> ModelTokenizer:
    """One token for each byte, and a few more; the tags are tokens of their own only with `has_tags`."""
    names = {"<|end|>": EOS, "<think>": BEGIN, "</think>": END, "nk>": TAIL, "k>{": PAST}
    if not has_tags:
        names = {"<|end|>": EOS, "<other>": BEGIN, "</other>": END, "nk>": TAIL, "k>{": PAST}
    vocab = {character: byte for byte, character in CHARACTER_OF_BYTE.items()} | names
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    if has_tags:
        backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    return ModelTokenizer(backend, SpecialIds(named={}))


def new_matcher(
    reasoning: ReasoningSpec, grammar: GrammarSpec | None = DIGIT, *, has_tags: bool = True
) -> ReasoningMatcher:
    tokenizer = byte_tokenizer(has_tags=has_tags)
    compiler = GrammarCompiler(lambda: tokenizer.backend, VOCAB_SIZE, (EOS,), deadline_s=5.0)
    inner = None if grammar is None else compiler.compile(grammar).new_matcher()
    return ReasoningMatcher(reasoning, ReasoningTokenizer(lambda: tokenizer, VOCAB_SIZE), inner, [EOS])


def allowed(matcher: GrammarMatcher) -> set[int]:
    row = np.zeros(matcher.num_mask_bytes, dtype=np.uint8)
    matcher.fill_mask(row)
    return {token_id for token_id in range(VOCAB_SIZE) if row[token_id // 8] >> token_id % 8 & 1}


def accept(matcher: GrammarMatcher, *tokens: int | str) -> None:
    for token in tokens:
        for token_id in [token] if isinstance(token, int) else token.encode():
            assert token_id in allowed(matcher), f"{token_id} is masked"
            matcher.accept_token(token_id)


DIGITS = set(b"0123456789")


def test_open_reasoning_is_free_until_its_end_and_then_the_grammar_begins() -> None:
    matcher = new_matcher(spec())
    assert allowed(matcher) == set(range(VOCAB_SIZE)) - {EOS}, "before the answer nothing may end"
    accept(matcher, "why { 1 </thin", BEGIN, "so")
    assert not matcher.is_accepting() and not matcher.forced_tokens()
    accept(matcher, END)
    assert matcher.forced_tokens() == [10, 10] and allowed(matcher) == {10}
    accept(matcher, "\n\n")
    assert allowed(matcher) == DIGITS and not matcher.is_accepting()
    accept(matcher, "7")
    assert matcher.is_finished()


def test_optional_reasoning() -> None:
    matcher = new_matcher(spec(start="optional"))
    assert allowed(matcher) == DIGITS | {BEGIN}
    accept(matcher, "7")
    assert matcher.is_finished(), "without reasoning there is no separator either"
    matcher = new_matcher(spec(start="optional"))
    accept(matcher, BEGIN, "hm", END, "\n\n")
    assert allowed(matcher) == DIGITS


def test_required_reasoning() -> None:
    matcher = new_matcher(spec(start="required"))
    assert matcher.forced_tokens() == [BEGIN] and allowed(matcher) == {BEGIN}
    accept(matcher, BEGIN, "x", END, "\n\n", "1")
    assert matcher.is_finished()
    with pytest.raises(GrammarError):
        new_matcher(spec(start="required")).accept_token(7)


def test_the_budget() -> None:
    matcher = new_matcher(spec(max_tokens=3))
    accept(matcher, "abc")
    assert matcher.forced_tokens() == [END, 10, 10]
    accept(matcher, END, "\n\n", "1")
    assert matcher.is_finished()
    assert new_matcher(spec(max_tokens=0)).forced_tokens() == [END, 10, 10]
    assert new_matcher(spec(max_tokens=0, start="required")).forced_tokens() == [BEGIN, END, 10, 10]
    assert allowed(new_matcher(spec(max_tokens=0, start="optional"))) == DIGITS
    ended_early = new_matcher(spec(max_tokens=3))
    accept(ended_early, "a", END, "\n\n", "1")
    assert ended_early.is_finished()


def test_a_budget_without_a_grammar_constrains_nothing_else() -> None:
    matcher = new_matcher(spec(max_tokens=2, start="optional"), grammar=None)
    everything = set(range(VOCAB_SIZE))
    assert allowed(matcher) == everything and matcher.is_accepting() and not matcher.constrains_end
    accept(matcher, "\n", BEGIN, "ab", END, "\n\n", "any text", EOS)
    assert allowed(matcher) == everything and not matcher.is_finished() and not matcher.forced_tokens()


def test_an_end_of_several_tokens_is_found_wherever_the_tokens_are_cut() -> None:
    matcher = new_matcher(spec(), has_tags=False)
    accept(matcher, "a <</th</thi")
    assert PAST in allowed(matcher)
    accept(matcher, "n")
    assert PAST not in allowed(matcher), "what would follow the end would be lost on the grammar"
    accept(matcher, "k>")
    assert allowed(matcher) == {10}
    in_one = new_matcher(spec(), has_tags=False)
    accept(in_one, "a</thi", TAIL, "\n\n", "1")
    assert in_one.is_finished()
    forced = new_matcher(spec(max_tokens=1, separator=""), has_tags=False)
    accept(forced, "a")
    assert bytes(forced.forced_tokens()) == b"</think>"
    begun = new_matcher(spec(start="optional"), has_tags=False)
    accept(begun, "<")
    assert bytes(begun.forced_tokens()) == b"think>"


@pytest.mark.parametrize("has_tags", [True, False])
def test_random_walks_end_with_one_answer_behind_the_reasoning(has_tags: bool) -> None:
    draw = random.Random(7)
    for _ in range(60):
        matcher = new_matcher(spec(max_tokens=draw.randrange(40)), NUMBER, has_tags=has_tags)
        text = b""
        for _ in range(300):
            choices = sorted(allowed(matcher))
            digits = [token_id for token_id in choices if token_id in DIGITS]
            token_id = draw.choice(digits or choices)
            if matcher.is_accepting() and EOS in choices and draw.random() < 0.5:
                break
            matcher.accept_token(token_id)
            text += {END: b"</think>", BEGIN: b"<think>", TAIL: b"nk>", PAST: b"k>{", EOS: b"?"}.get(
                token_id, bytes([token_id & 255])
            )
            if matcher.is_finished():
                break
        _, end, answer = text.partition(b"</think>\n\n")
        assert end and isinstance(json.loads(answer), int), text


def test_the_engine_thinks_and_then_answers(engine: ConstrainedEngine) -> None:
    """With the default model, whose vocabulary has no tags."""
    properties = {"a": {"enum": ["x", "y"]}}
    document = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    schema = GrammarSpec(kind="json_schema", value=json.dumps(document))
    for seed in range(3):
        sampling = {"temperature": 1.0, "seed": seed, "max_tokens": 120}
        reasoning = spec(max_tokens=12)
        text, finished = engine.generate(schema, "Let me think. <think>", reasoning, **sampling)
        thoughts, end, answer = text.partition("</think>\n\n")
        assert end and thoughts and json.loads(answer)["a"] in ("x", "y"), text
        assert finished.reason is FinishReason.STOP
        again, _ = engine.generate(schema, "Let me think. <think>", reasoning, **sampling, logprobs=0)
        assert again.partition("</think>\n\n")[1], "also where every token is sampled"
    text, finished = engine.generate(None, "Let me think. <think>", spec(max_tokens=5), temperature=0.0, max_tokens=40)
    assert text.count("</think>\n\n") == 1 and finished.reason is FinishReason.LENGTH
    free, _ = engine.generate(None, "Let me think. <think>", temperature=0.0, max_tokens=5)
    assert text.startswith(free), "the budget changes nothing before it is used up"
    assert engine.generate(schema, "<think>", spec(), temperature=0.0, max_tokens=9)[1].reason is FinishReason.LENGTH


def test_markers_of_the_default_model_are_made_in_time(default_gguf: Path, grammar_tokenizer: ModelTokenizer) -> None:
    info = load_model_info(str(default_gguf))
    tokenizer = ReasoningTokenizer(lambda: grammar_tokenizer, info.vocab_size)
    markers = tokenizer.markers(spec())
    assert markers is tokenizer.markers(spec(start="required", max_tokens=1)), "once for all requests"
    assert grammar_tokenizer.decode(markers.end_ids) == "</think>"
    for num_matched, tokens in enumerate(markers.overlong):
        rest = markers.end[num_matched:]
        assert all(rest in grammar_tokenizer.token_bytes(token_id) for token_id in tokens)
