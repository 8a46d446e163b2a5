"""Deltas of the detokenizer and of `RequestState`: whatever the tokens and the steps, together they are the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

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


def sentencepiece_like() -> Tokenizer:
    """Words carry the space before them, the first one loses it, and rare characters are bytes, as in Llama 2."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *'abc()[]<>/_,.:{}"',
        "\u2581a",
        "\u2581b",
    ]
    model = models.BPE(
        vocab={piece: token_id for token_id, piece in enumerate(pieces)},
        merges=[("\u2581", "a"), ("\u2581", "b")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(literal, special=True) for literal in ("<s>", "</s>", "<call>", "[TOOL]")])
    return backend


@pytest.fixture(scope="module")
def backends(tokenizer: ModelTokenizer) -> dict[str, tuple[Tokenizer, list[str], list[str]]]:
    """For each kind a tokenizer, tokens to keep and tokens to drop, all of them special."""
    byte_level = Tokenizer.from_str(tokenizer.backend.to_str())
    byte_level.add_special_tokens([AddedToken("<｜call▁begin｜>", special=True)])
    return {
        "byte level": (byte_level, ["<|im_start|>", "<｜call▁begin｜>"], ["<|im_end|>", "<repo_name>"]),
        "sentencepiece": (sentencepiece_like(), ["<call>", "[TOOL]"], ["<s>", "</s>"]),
    }


HALF_CHARACTER = "half"
TEXT_PIECES = st.text('ab ():{"你👩', min_size=1, max_size=5)


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_kept_tokens_stay_where_the_others_vanish(
    backends: dict[str, tuple[Tokenizer, list[str], list[str]]], kind: str, data: st.DataObject
) -> None:
    backend, kept, dropped = backends[kind]
    pieces = data.draw(st.lists(st.one_of(TEXT_PIECES, st.sampled_from([*kept, *dropped, HALF_CHARACTER])), max_size=8))

    def ids_of(piece: str) -> list[int]:
        if piece == HALF_CHARACTER:  # behind a letter, as a decoder of bytes would see it together with bytes before
            return (
                backend.encode("a", add_special_tokens=False).ids
                + backend.encode("你", add_special_tokens=False).ids[:-1]
            )
        return list(backend.encode(piece, add_special_tokens=False).ids)

    ids = [token_id for piece in pieces for token_id in ids_of(piece)]
    if data.draw(st.booleans()):  # else the output ends with half a character, perhaps
        ids += ids_of(" b")
    context = ids_of("a: b")
    skipped = {backend.token_to_id(literal) for literal in dropped}
    everything = context + [token_id for token_id in ids if token_id not in skipped]
    before = backend.decode(context, skip_special_tokens=False)
    expected = backend.decode(everything, skip_special_tokens=False)
    detokenizer = IncrementalDetokenizer(backend, context, kept_tokens=kept)
    shown = [*map(detokenizer.decode, ids), detokenizer.flush()]
    assert before + "".join(shown) == expected
    for literal in kept:
        kept_id = backend.token_to_id(literal)
        for token_id, delta in zip(ids, shown, strict=False):
            assert delta.endswith(literal) == (token_id == kept_id)


def test_request_state_keeps_what_a_parser_looks_for(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("<|im_start|> a<|im_end|> b<|im_start|>")
    request = EngineCoreRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=9), arrival_time=0.0
    )
    collector = RequestOutputCollector(1, final_only=False)
    options = OutputOptions(kept_tokens=frozenset(("<|im_start|>", "<no_token_of_this_model>")))
    output = RequestState(request, 0, options, tokenizer.backend, collector).update(
        ids, [], Finished(reason=FinishReason.LENGTH)
    )
    assert output is not None
    assert output.text == "<|im_start|> a b<|im_start|>"


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
