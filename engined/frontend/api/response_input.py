"""The items of `input` in a body of POST /v1/responses. Frontend process; read by `serving/responses/items`.

One struct has the fields of all kinds of items, because a fault is then named by its field; which kind has which field
is checked where the items are read.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.fields import NO_MEDIA
from engined.frontend.api.support import Unsupported, accepted, honoured, refused

MAX_ITEMS = 4096
_OF_ANOTHER_ITEM = "it belongs to an item of a hosted tool; leave it out"
_ENCRYPTED = "engined cannot read it; send the reasoning in content, as engined's own answers have it, or leave it out"


class ResponseInputPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of an item. Only text is implemented; the other payloads are named so that they can be refused."""

    type: Annotated[
        str,
        honoured(
            "input_text; in a message of the assistant output_text or refusal; in reasoning reasoning_text or, in its "
            "summary, summary_text.",
            enum=["input_text", "output_text", "refusal", "reasoning_text", "summary_text"],
        ),
    ]
    text: Annotated[str | None, honoured("Of a text part.")] = None
    refusal: Annotated[str | None, honoured("Of a refusal part.")] = None
    annotations: Annotated[list[Any] | None, accepted("the model does not read what is around a text.")] = None
    logprobs: Annotated[list[Any] | None, accepted("the model does not read what is around a text.")] = None
    prompt_cache_breakpoint: Annotated[
        dict[str, Any] | None, accepted("the prefix cache finds every prompt by its tokens.")
    ] = None
    image_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    detail: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_id: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_data: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    filename: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    input_audio: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET


class ResponseInputItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """One item of the conversation."""

    type: Annotated[
        str | None,
        honoured(
            '"message", which may be left out, "reasoning", "function_call" or "function_call_output".',
            enum=["message", "reasoning", "function_call", "function_call_output", None],
        ),
    ] = None
    role: Annotated[
        str | None,
        honoured(
            "Of a message: user, assistant, system or developer.", enum=["user", "assistant", "system", "developer"]
        ),
    ] = None
    content: Annotated[
        str | list[ResponseInputPart] | None,
        honoured("Of a message: a text, or a list of parts. Of reasoning: parts, which the chat template may show."),
    ] = None
    summary: Annotated[
        list[ResponseInputPart] | None, honoured("Of reasoning: stands in for its content, if it has none.")
    ] = None
    call_id: Annotated[
        str | None, honoured("Of a call and of its result: what connects the two.", minLength=1, maxLength=256)
    ] = None
    name: Annotated[str | None, honoured("Of a call, and optionally of its result: the name of the tool.")] = None
    arguments: Annotated[str | None, honoured("Of a call: a JSON object, as a text.")] = None
    output: Annotated[
        str | list[ResponseInputPart] | None, honoured("The result of a call: a text, or a list of input_text parts.")
    ] = None
    id: Annotated[str | None, accepted("stored items have ids of their own.")] = None
    status: Annotated[
        Literal["in_progress", "completed", "incomplete"] | None,
        honoured("A call that is incomplete was never made, and the model does not get to see it."),
    ] = None
    phase: Annotated[str | None, accepted("the model reads the text alone.")] = None
    encrypted_content: Annotated[Unsupported, refused(_ENCRYPTED, "")] = UNSET
    input: Annotated[Unsupported, refused(_OF_ANOTHER_ITEM)] = UNSET
    action: Annotated[Unsupported, refused(_OF_ANOTHER_ITEM)] = UNSET
