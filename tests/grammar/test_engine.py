"""Constrained requests through core, scheduler and worker with the real model."""

import json
import re

import numpy as np

from engined.core.commands import AbortRequests, ClientGone
from engined.protocol.engine import FinishReason
from engined.protocol.grammar import GrammarSpec
from tests.grammar.constrained_engine import ConstrainedEngine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PERSON = GrammarSpec(kind="json_schema", value=json.dumps(SCHEMA))
COMPACT = GrammarSpec(kind="json_schema", value=json.dumps(SCHEMA), any_whitespace=False)
WORDS = GrammarSpec(kind="regex", value="[a-z]{3}( [a-z]{2,9}){2,}")


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "kind"] and 0 <= person["age"] <= 120
    assert len(person["name"]) <= 12 and person["kind"] in ("alpha", "beta")


def test_every_whole_document_is_valid(engine: ConstrainedEngine) -> None:
    """Beside each other, and beside a free one: with all that a request can ask for."""
    settings = [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 1, "repetition_penalty": 1.3, "presence_penalty": 1.0},
        {"temperature": 1.5, "seed": 2, "min_tokens": 90},
        {"temperature": 2.0, "seed": 3, "logprobs": 3},
        {
            "temperature": 1.0,
            "seed": 4,
            "logit_bias": ((0, 100.0), (2, 100.0), (216, 100.0), (198, 100.0)),
            "max_tokens": 300,
        },
        {"temperature": 1.5, "seed": 5, "ignore_eos": True, "stop_token_ids": (28, 476)},
    ]
    for index, sampling in enumerate(settings):
        engine.add(f"person {index}", "Somebody:", PERSON if index % 2 == 0 else COMPACT, **sampling)
        engine.wait_for_grammar()
    engine.add("free", "Once upon a time", None, max_tokens=12, temperature=0.0)
    engine.run()
    for index in range(len(settings)):
        text, finished = engine.text(f"person {index}")
        assert finished.reason is FinishReason.STOP, (index, text, finished)
        check_person(text)
    together = engine.answers["free"].token_ids
    assert engine.generate(None, "Once upon a time", max_tokens=12, temperature=0.0)[0] == engine.tokenizer.decode(
        together
    )


def test_jump_forward_saves_steps_and_changes_no_seeded_answer(engine: ConstrainedEngine) -> None:
    before, forced = engine.num_steps, engine.scheduler.stats().num_forced_tokens
    text, _ = engine.generate(COMPACT, temperature=1.2, seed=7, repetition_penalty=1.2)
    steps, forced = engine.num_steps - before, engine.scheduler.stats().num_forced_tokens - forced
    num_tokens = len(list(engine.answers.values())[-1].token_ids)
    assert steps + forced == num_tokens and forced > 5
    before = engine.num_steps
    check_person(engine.generate(COMPACT, temperature=1.2, seed=7, repetition_penalty=1.2, logprobs=0)[0])
    answer = list(engine.answers.values())[-1]
    assert engine.num_steps - before == len(answer.token_ids) == len(answer.logprobs)
    check_person(text)


def test_logprobs_are_over_what_the_grammar_allows(engine: ConstrainedEngine) -> None:
    engine.generate(GrammarSpec(kind="choice", value='["yes", "no"]'), temperature=0.0, logprobs=5)
    first = list(engine.answers.values())[-1].logprobs[0]
    texts = [engine.tokenizer.token_text(token_id) for token_id in first.token_ids]
    assert all(
        "yes".startswith(text) or "no".startswith(text) for text in texts if first.logprobs[texts.index(text)] > -99
    )
    assert np.isclose(np.exp(first.logprobs[1:]).sum(), 1.0, atol=0.05)


def test_ends(engine: ConstrainedEngine) -> None:
    text, finished = engine.generate(PERSON, max_tokens=4)
    assert finished.reason is FinishReason.LENGTH and text
    text, finished = engine.generate(WORDS, ignore_eos=True, max_tokens=25)
    assert finished.reason is FinishReason.LENGTH
    text, finished = engine.generate(WORDS, logit_bias=((2, 100.0),))
    assert finished.reason is FinishReason.STOP and finished.stop_token_id is None and re.fullmatch(WORDS.value, text)
    # A stop token of the request ends it where the grammar may end, and nowhere else.
    text, finished = engine.generate(WORDS, stop_token_ids=(5,), ignore_eos=True, logit_bias=((5, 100.0),))
    assert finished.stop_token_id == 5 and re.fullmatch(WORDS.value, text)
    text, finished = engine.generate(GrammarSpec(kind="regex", value=""), ignore_eos=True)
    assert (text, finished.reason) == ("", FinishReason.STOP)


def test_what_leaves_no_choice_is_an_error_of_that_request(engine: ConstrainedEngine) -> None:
    engine.add("stuck", "Hi", GrammarSpec(kind="choice", value='["red"]'), allowed_token_ids=(5,))
    engine.wait_for_grammar()
    engine.add("fine", "Hi", None, max_tokens=3, min_tokens=3)
    engine.run()
    finished = engine.answers["stuck"].finished
    assert finished is not None and "allowed_token_ids" in (finished.error or "")
    assert len(engine.answers["fine"].token_ids) == 3


def test_aborts_and_faults_before_the_grammar_is_there(engine: ConstrainedEngine) -> None:
    engine.add("aborted", "Hi", PERSON)
    engine.handle(AbortRequests(0, ["aborted"]))
    finished = engine.answers["aborted"].finished
    assert finished is not None and finished.reason is FinishReason.ABORT
    engine.add("lost", "Hi", PERSON)
    engine.handle(ClientGone(0))
    engine.add("faulty", "Hi", GrammarSpec(kind="regex", value="(a"))
    for _ in range(3):
        engine.wait_for_grammar()
    finished = engine.answers["faulty"].finished
    assert finished is not None and "unclosed group" in (finished.error or "")
    assert engine.answers["lost"].finished is None and not engine.core.has_work()


def test_a_preempted_request_goes_on_in_its_grammar(engine: ConstrainedEngine) -> None:
    alone = [engine.generate(PERSON, f"Person {index}:", temperature=1.0, seed=index)[0] for index in range(2)]
    before = engine.scheduler.stats().num_preemptions
    for index in range(2):
        engine.add(f"again {index}", f"Person {index}:", PERSON, temperature=1.0, seed=index)
        engine.wait_for_grammar()
    for _ in range(5):
        engine.step()
    engine.scheduler._roster.preempt_last()
    engine.run()
    assert engine.scheduler.stats().num_preemptions == before + 1
    assert [engine.text(f"again {index}")[0] for index in range(2)] == alone
