"""Fields that constrain what the model may write: `response_format` as OpenAI has it, `structured_outputs` as vLLM has.

Frontend process; part of the bodies in `fields` and `responses`, resolved by `serving/constraints`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.support import Unsupported, accepted, honoured, refused

MAX_CHOICE_TEXTS = 10_000
EXACT = "every schema is kept exactly, strict or not; what cannot be kept is refused."
NOT_READ = "the model does not read it; describe the format in a message."


class JsonSchemaFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema of an answer, and what OpenAI wants to know of it."""

    schema: Annotated[
        dict[str, Any] | bool | None,
        honoured("The JSON Schema (draft 2020-12) that the answer validates against. Required."),
    ] = None
    name: Annotated[str | None, accepted(NOT_READ)] = None
    description: Annotated[str | None, accepted(NOT_READ)] = None
    strict: Annotated[bool | None, accepted(EXACT)] = None


class TagStructure(Struct, kw_only=True, forbid_unknown_fields=True):
    """One kind of tagged piece."""

    begin: Annotated[str, honoured("What the piece begins with; one of the triggers begins it.")]
    schema: Annotated[dict[str, Any] | bool | None, honoured("The JSON Schema of what is inside.")] = None
    end: Annotated[str, honoured("What the piece ends with.")]


class StructuralTag(Struct, kw_only=True, forbid_unknown_fields=True):
    """Free text with pieces of JSON in it: what `structured_outputs.structural_tag` holds."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: list[TagStructure]
    triggers: list[str]


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of an answer."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"],
        honoured("text: free; json_object: a JSON object; json_schema: by a schema; structural_tag: tagged pieces."),
    ]
    json_schema: Annotated[JsonSchemaFormat | None, honoured("With type json_schema.")] = None
    structures: Annotated[list[TagStructure] | None, honoured("With type structural_tag: the kinds of pieces.")] = None
    triggers: Annotated[
        list[str] | None, honoured("With type structural_tag: texts after which a piece must follow.")
    ] = None
    schema: Annotated[Unsupported, refused('send {"type": "json_schema", "json_schema": {"schema": ...}}')] = UNSET


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """One constraint."""

    json: Annotated[
        dict[str, Any] | str | bool | None,
        honoured("The JSON Schema (draft 2020-12) that the answer validates against, as an object or as its text."),
    ] = None
    regex: Annotated[str | None, honoured("The regular expression that the whole answer matches.")] = None
    choice: Annotated[
        list[str] | None,
        honoured("The answer is exactly one of these texts.", minItems=1, maxItems=MAX_CHOICE_TEXTS),
    ] = None
    grammar: Annotated[
        str | None, honoured("A context-free grammar: Lark as llguidance reads it, or GBNF as llama.cpp does.")
    ] = None
    json_object: Annotated[bool | None, honoured("The answer is a JSON object.")] = None
    structural_tag: Annotated[
        str | dict[str, Any] | None,
        honoured("Free text with tagged pieces: `structures` and `triggers` as in response_format, or its text."),
    ] = None
    disable_any_whitespace: Annotated[
        bool | None, honoured("JSON without whitespace between its parts; with json or json_object.")
    ] = None
    disable_additional_properties: Annotated[
        Unsupported, refused("set additionalProperties to false in the schema", False)
    ] = UNSET
    whitespace_pattern: Annotated[Unsupported, refused("whitespace is bounded; or send disable_any_whitespace")] = UNSET
