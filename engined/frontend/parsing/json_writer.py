"""JSON text of arguments that a model writes value by value, between tags. Frontend process; called by parsers."""

import json


class JsonObjectWriter:
    """One JSON object, grown member by member. Each method returns the text that comes next."""

    def __init__(self) -> None:
        self._is_empty = True

    def key(self, key: str) -> str:
        """All up to the value of the next member. The value follows, as JSON text, in any number of pieces."""
        opening = "{" if self._is_empty else ", "
        self._is_empty = False
        return f"{opening}{json.dumps(key, ensure_ascii=False)}: "

    def end(self) -> str:
        """The end of the object."""
        return "{}" if self._is_empty else "}"


def escaped(text: str) -> str:
    """A piece of a string as it stands between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
