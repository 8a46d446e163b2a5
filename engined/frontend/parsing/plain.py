"""The parser of models, or requests, without tools. Frontend process."""

from engined.frontend.parsing.events import ContentText, OutputEvent
from engined.frontend.parsing.parser import OutputParser


class PlainParser(OutputParser):
    """All text is content."""

    def feed(self, text: str) -> list[OutputEvent]:
        """At once."""
        return [ContentText(text)] if text else []

    def finish(self) -> list[OutputEvent]:
        """Nothing is ever held back."""
        return []
