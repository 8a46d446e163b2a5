"""Deltas of the detokenizer and of `RequestState`: whatever the tokens and the steps, together they are the text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.detokenizer import IncrementalDetokenizer
from engined.frontend.output.request_state import OutputOptions, RequestState
from engined.protocol.engine import EngineCoreRequest, Finished, FinishReason
from engined.protocol.sampling import SamplingParams
from engined.tokenization.tokenizer import ModelTokenizer

TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from("👩‍👩‍👧‍👦🇩🇪 你好世界 مرحبا नमस्ते \n\tabc é"),
    ),
    max_size=30,
)


def token_lists(max_id: int) -> st.SearchStrategy[list[int]]:
    """Random ids, often byte tokens, which are parts of characters."""
    return st.lists(st.one_of(st.integers(0, max_id), st.integers(17, 272)), max_size=60)


def deltas(tokenizer: ModelTokenizer, ids: list[int], *, skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer.backend, [19556, 28], skip_special_tokens=skip)
    return [*(detokenizer.decode(token_id) for token_id in ids), detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_deltas_of_random_tokens_are_the_text(tokenizer: ModelTokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(token_lists(tokenizer.vocab_size - 1))
    assert "".join(deltas(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_no_replacement_characters_in_valid_text(tokenizer: ModelTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    text = tokenizer.decode(ids)  # the vocabulary has no token for some control characters
    pieces = deltas(tokenizer, ids, skip=False)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_endless_garbage_is_released(tokenizer: ModelTokenizer) -> None:
    [continuation] = [i for i in range(17, 273) if tokenizer.token_bytes(i) == b"\x80"]
    pieces = deltas(tokenizer, [continuation] * 300, skip=False)
    assert "".join(pieces) == "\ufffd" * 300
    assert max(map(len, pieces)) <= 64


def test_prompt_that_ends_within_a_character(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("👩")
    detokenizer = IncrementalDetokenizer(tokenizer.backend, ids[:-1], skip_special_tokens=True)
    text = (
        detokenizer.decode(ids[-1]) + "".join(map(detokenizer.decode, tokenizer.encode(" woman"))) + detokenizer.flush()
    )
    assert text == "\ufffd woman"


def reference_cut(text: str, stops: list[str], include: bool) -> str:
    """The text up to the stop string that is complete first, character by character."""
    for end in range(1, len(text) + 1):
        ending_here = [stop for stop in stops if text[:end].endswith(stop)]
        if ending_here:
            return text[:end] if include else text[: end - max(map(len, ending_here))]
    return text


@settings(max_examples=300, deadline=None)
@given(data=st.data(), text=TEXTS, include=st.booleans())
def test_request_state_cuts_at_stop_strings_for_any_steps(
    tokenizer: ModelTokenizer, data: st.DataObject, text: str, include: bool
) -> None:
    ids = tokenizer.encode(text)
    text = tokenizer.decode(ids)
    slices = st.tuples(st.integers(0, 30), st.integers(1, 4)).map(lambda pair: text[pair[0] : sum(pair)])
    stops = [stop for stop in data.draw(st.lists(st.one_of(slices, TEXTS), max_size=3)) if stop]
    steps = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=8))
    interval = data.draw(st.integers(1, 5))
    request = EngineCoreRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=len(ids)), arrival_time=0.0
    )
    options = OutputOptions(stop=tuple(stops), include_stop_str_in_output=include, stream_interval=interval)
    collector = RequestOutputCollector(1, final_only=False)
    state = RequestState(request, 0, options, tokenizer.backend, collector)
    position, turn, shown = 0, 0, ""
    token_ids: list[int] = []
    while state.finish_reason is None:
        step = ids[position : position + steps[turn % len(steps)]]
        position, turn = position + len(step), turn + 1
        finished = Finished(reason=FinishReason.LENGTH) if position >= len(ids) else None
        output = state.update(step, [], finished)
        if output is not None:
            shown += output.text
            token_ids += output.token_ids
    assert shown == reference_cut(text, stops, include)
    assert token_ids == ids[: len(token_ids)]
    assert (state.finish_reason == "stop") == any(stop in text for stop in stops)


def test_stop_strings_wait_for_min_tokens(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode(" a a a a a")
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1],
        sampling=SamplingParams(max_tokens=9, min_tokens=3),
        arrival_time=0.0,
    )
    collector = RequestOutputCollector(1, final_only=False)
    state = RequestState(request, 0, OutputOptions(stop=(" a",)), tokenizer.backend, collector)
    output = state.update(ids, [], Finished(reason=FinishReason.LENGTH))
    assert output is not None
    assert (output.text, output.token_ids, output.stop_reason) == (" a a a", ids[:4], " a")
