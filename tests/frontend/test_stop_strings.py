"""The stop string matcher on its own."""

from hypothesis import given
from hypothesis import strategies as st

from engined.frontend.output.stop_strings import StopStringMatcher


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = StopStringMatcher(stops, include)
    shown = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


def test_the_example_of_the_contract() -> None:
    assert run(["DEFGHIJ"], ["ABC D", "EFGH", "IJK"]) == ("ABC ", "DEFGHIJ")
    assert run(["DEFGHIJ"], ["ABC DEFGHIJK"], include=True) == ("ABC DEFGHIJ", "DEFGHIJ")


def test_only_what_may_still_match_is_held_back() -> None:
    matcher = StopStringMatcher(["aab"])
    assert matcher.push("xaa") == ("x", None)
    assert matcher.push("a") == ("a", None)
    assert matcher.push("c") == ("aac", None)
    assert matcher.push("aab!") == ("", "aab")


def test_a_stop_string_inside_another() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == ("xa", "bc")
    assert run(["abc", "bc"], ["xab", "c"]) == ("x", "abc")


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=6), max_size=12),
    include=st.booleans(),
)
def test_the_cutting_into_pieces_does_not_matter(stops: list[str], pieces: list[str], include: bool) -> None:
    text = "".join(pieces)
    shown, stop = run(stops, pieces, include)
    assert (shown, stop) == run(stops, list(text), include)
    if stop is None:
        assert shown == text and not any(candidate in text for candidate in stops)
    else:
        end = len(shown) + (0 if include else len(stop))
        assert text[:end].endswith(stop) and not any(candidate in text[: end - 1] for candidate in stops)
