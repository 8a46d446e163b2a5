"""Requests with a grammar in the scheduler: masks, forced tokens, and how they end."""

from engined.errors import GrammarError
from engined.protocol.engine import FinishReason
from tests.scheduler.engine import FakeEngine
from tests.scheduler.toy_grammar import FAULTY, TOY, ToyMatcher

PROMPTS = [[number % 12, 5, 7] for number in range(40)]


def test_a_forced_run_takes_one_forward() -> None:
    engine = FakeEngine(num_blocks=400, max_num_seqs=64)
    for index, prompt in enumerate(PROMPTS):
        engine.add(f"r{index}", prompt, grammar=TOY, max_tokens=30, seed=index)
        engine.add(f"l{index}", prompt, grammar=TOY, max_tokens=30, seed=index, logprobs=0)
    forced = 0
    while engine.scheduler.has_work():
        plan = engine.step()
        for request_id, token_ids in plan.forced_token_ids.items():
            assert request_id.startswith("r"), "log-probabilities need a forward for each token"
            assert plan.num_scheduled_tokens[request_id] == 1 + len(token_ids)
            forced += len(token_ids)
    # Those that ended a request are counted, and need not be computed.
    assert engine.scheduler.stats().num_forced_tokens >= forced > 20
    for index in range(len(PROMPTS)):
        assert engine.records[f"r{index}"].token_ids == engine.records[f"l{index}"].token_ids


def test_a_complete_grammar_ends_the_request_at_once() -> None:
    engine = FakeEngine(num_blocks=400)
    for index, prompt in enumerate(PROMPTS):
        engine.add(f"r{index}", prompt, grammar=TOY, max_tokens=60, min_tokens=60, seed=index)
    engine.run()
    ends = [record.finished for record in engine.records.values()]
    assert any(finished is not None and finished.is_grammar_complete for finished in ends), "min_tokens gives way"
    for record in engine.records.values():
        assert record.finished is not None
        assert record.finished.reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_a_broken_matcher_ends_its_request_only() -> None:
    engine = FakeEngine()
    engine.add("broken", [1, 2, 3], grammar=FAULTY, max_tokens=40, seed=3)
    engine.add("sound", [1, 2, 3], max_tokens=6)
    engine.run()
    finished = engine.records["broken"].finished
    assert finished is not None and finished.reason is FinishReason.ERROR and "token" in (finished.error or "")
    assert len(engine.records["sound"].token_ids) == 6


def test_a_mask_that_cannot_be_made_ends_its_request_only() -> None:
    class Unfillable(ToyMatcher):
        def fill_mask(self, row: object) -> None:
            raise GrammarError("too many states")

    engine = FakeEngine()
    request = engine.add("broken", [1, 2, 3], grammar=TOY)
    request.matcher = Unfillable(is_faulty=False, eos_token_ids=())
    engine.add("sound", [1, 2, 3], grammar=TOY, max_tokens=1)
    engine.worker.constrained["broken"] = True
    engine.run()
    finished = engine.records["broken"].finished
    assert finished is not None and finished.error == "too many states"
    assert engine.records["sound"].token_ids
