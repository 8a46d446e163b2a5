"""How a family of models writes its reasoning and its tool calls. Data, without state. Frontend process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engined.frontend.parsing.parser import OutputParser, ParserContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedArguments:
    """Arguments one by one between tags, instead of a JSON object. Strings stand there raw, all else as JSON."""

    before_key: str
    after_key: str
    after_value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The exact text of calls, by which a grammar can hold the model to them.

    before_calls (before_name NAME before_arguments ARGUMENTS after_arguments) between_calls (...) after_calls

    The literals of special tokens stand in it as text. The format's own parser reads all that this syntax writes.
    """

    before_calls: str = ""
    before_name: str = ""
    before_arguments: str
    after_arguments: str = ""
    between_calls: str = ""
    after_calls: str = ""
    tagged: TaggedArguments | None = None
    """None: the arguments are a JSON object."""
    trigger: str | None = None
    """What begins a call, and nothing else, in the midst of content: a prefix of before_calls + before_name. None:
    calls are only known by their place, at the beginning of the content, where they begin with `{` or `[`."""
    is_single: bool = False
    """An answer has one call at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """A block of reasoning before the answer."""

    name: str
    begin: str
    """For example "<think>"."""
    end: str
    separator: str = ""
    """What the model was trained to write between the end and the answer, whether content or calls."""
    content_prefix: str = ""
    """What it writes between the separator and content; no part of the content."""
    is_always_begun: bool = False
    """The model begins every answer with reasoning."""
    is_written_in: Callable[[str], bool]
    """Whether a chat template (its source) belongs to this family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Calls of tools in the answer."""

    name: str
    new_parser: Callable[[ParserContext], OutputParser]
    """Parses what follows the reasoning; with `parses_reasoning`, all."""
    markers: tuple[str, ...]
    """The literals that the parser looks for. Those of them that are special tokens are kept in the text."""
    is_written_in: Callable[[str], bool]
    """Whether a chat template (its source) belongs to this family."""
    syntax: CallSyntax | None = None
    """None: calls can be read, but not enforced."""
    syntax_if_tagged_fails: CallSyntax | None = None
    """For tools whose arguments cannot be written between tags."""
    parses_reasoning: bool = False
    ends_reasoning: str | None = None
    """What begins a call and never stands in reasoning: a model that writes it has forgotten the end of the block."""
    call_ids: Literal["random", "nine_characters", "function_index"] = "random"
    """"call_" and 24 random characters; nine letters and digits, as Mistral's templates demand; or
    "functions.NAME:INDEX", INDEX counting all calls of the conversation, as Kimi's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """What is looked for in the answers of one model."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    kept_tokens: frozenset[str] = field(default_factory=frozenset)
    """Special tokens of the model's tokenizer that must stay in the text, because a parser looks for them."""

    @property
    def finds_reasoning(self) -> bool:
        """Whether reasoning is told apart from the answer."""
        return self.reasoning is not None or (self.tools is not None and self.tools.parses_reasoning)
