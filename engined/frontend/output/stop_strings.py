"""Stop strings: an Aho-Corasick automaton over the text of one sequence. Frontend process; pure.

The automaton's depth is the length of the longest end of the text that may still become a stop string, which is what
must be held back. As it goes character by character, the result does not depend on how the text was cut into deltas.
"""

from collections import deque
from collections.abc import Sequence


class StopStringMatcher:
    """Finds the first stop string that completes; of several that complete together, the longest.

    Method: Aho and Corasick, Efficient string matching (1975).
    """

    def __init__(self, stop_strings: Sequence[str], include_in_output: bool = False) -> None:
        self._include_in_output = include_in_output
        self._children: list[dict[str, int]] = [{}]
        self._failure = [0]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop_string in stop_strings:
            self._insert(stop_string)
        self._link_failures()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text: (text that may be shown, the stop string that was found). After a hit nothing more comes."""
        for position, character in enumerate(text, start=1):
            self._state = self._next_state(self._state, character)
            stop_string = self._match[self._state]
            if stop_string is not None:
                seen = self._held + text[:position]
                self._held = ""
                return seen if self._include_in_output else seen[: -len(stop_string)], stop_string
        seen = self._held + text
        certain = len(seen) - self._depth[self._state]
        self._held = seen[certain:]
        return seen[:certain], None

    def flush(self) -> str:
        """The text held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _insert(self, stop_string: str) -> None:
        state = 0
        for character in stop_string:
            following = self._children[state].get(character)
            if following is None:
                following = len(self._children)
                self._children[state][character] = following
                self._children.append({})
                self._failure.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = following
        self._match[state] = stop_string

    def _link_failures(self) -> None:
        """Breadth first: the failure link of a state is the state of its longest proper suffix."""
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                self._failure[child] = self._next_state(self._failure[state], character)
                if self._match[child] is None:
                    self._match[child] = self._match[self._failure[child]]
                queue.append(child)

    def _next_state(self, state: int, character: str) -> int:
        while state and character not in self._children[state]:
            state = self._failure[state]
        return self._children[state].get(character, 0)
