"""Bodies and answers of the pooling routes: /v1/embeddings, /score and /rerank with their aliases. Frontend process."""

from typing import Annotated, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.fields import MAX_PRIORITY
from engined.frontend.api.support import Unsupported, accepted, honoured, refused

MAX_ITEMS = 2048
"""Texts of one request; OpenAI's own limit."""
MAX_TOKENS = 300_000
"""Tokens of one request; OpenAI's own limit."""

_FIRST_TEXTS = "The first text of every pair, or one for each. Synonyms: text_1, queries, data_1."
_SECOND_TEXTS = "The second texts, not empty. Synonyms: text_2, documents, items, data_2."


class PoolingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What all pooling routes share."""

    model: Annotated[str | None, honoured("A name from /v1/models; the served model if left out.")] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        honoured("Keep so many tokens of a longer text, special ones included; -1: what fits.", minimum=-1),
    ] = None
    add_special_tokens: Annotated[
        bool | None, honoured("Put the model's special tokens around texts. Default true.")
    ] = None
    use_activation: Annotated[
        bool | None,
        honoured("False leaves out the model's last step: an embedding keeps its length, a score is the raw output."),
    ] = None
    priority: Annotated[
        int | None,
        honoured("Lower runs first; needs --scheduling-policy priority.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY),
    ] = None
    cache_salt: Annotated[
        str | None, honoured("Prefix blocks are shared only under the same salt.", minLength=1, maxLength=64)
    ] = None
    request_id: Annotated[str | None, honoured("Comes back as x-request-id.", minLength=1, maxLength=64)] = None
    user: Annotated[str | None, accepted("one local server knows no users.")] = None


class EmbeddingRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/embeddings."""

    input: Annotated[
        str | list[int | str | list[int]],
        honoured(
            "One text, several, one list of token ids, or several; not mixed, none empty. Ids are taken as they are.",
            minLength=1,
            minItems=1,
            maxItems=MAX_ITEMS,
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, honoured("base64 is that of little-endian float32. Default float.")
    ] = None
    dimensions: Annotated[
        int | None, honoured("Values to keep, for models whose config.json says is_matryoshka.", minimum=1)
    ] = None
    embed_dtype: Annotated[Unsupported, refused("values are float32; leave it out", "float32")] = UNSET
    endianness: Annotated[Unsupported, refused("bytes are little-endian; leave it out", "little", "native")] = UNSET
    padding: Annotated[Unsupported, refused("texts are never padded; leave it out", False)] = UNSET
    messages: Annotated[Unsupported, refused("send input, as text or token ids")] = UNSET


class ScoreRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /score: the first texts under one name, the second ones under another."""

    text_1: Annotated[str | list[str] | None, honoured(_FIRST_TEXTS, maxItems=MAX_ITEMS)] = None
    queries: Annotated[str | list[str] | None, honoured(_FIRST_TEXTS, maxItems=MAX_ITEMS)] = None
    data_1: Annotated[str | list[str] | None, honoured(_FIRST_TEXTS, maxItems=MAX_ITEMS)] = None
    text_2: Annotated[str | list[str] | None, honoured(_SECOND_TEXTS, maxItems=MAX_ITEMS)] = None
    documents: Annotated[str | list[str] | None, honoured(_SECOND_TEXTS, maxItems=MAX_ITEMS)] = None
    items: Annotated[str | list[str] | None, honoured(_SECOND_TEXTS, maxItems=MAX_ITEMS)] = None
    data_2: Annotated[str | list[str] | None, honoured(_SECOND_TEXTS, maxItems=MAX_ITEMS)] = None


class RerankDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document as an object."""

    text: Annotated[str, honoured("Not empty.", minLength=1)]


class RerankRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /rerank."""

    query: Annotated[str, honoured("Not empty.", minLength=1)]
    documents: Annotated[list[str | RerankDocument], honoured("Not empty.", minItems=1, maxItems=MAX_ITEMS)]
    top_n: Annotated[int | None, honoured("Results to return. Default: all.", minimum=1)] = None
    return_documents: Annotated[bool | None, honoured("Whether results hold the texts. Default true.")] = None


class PoolingUsage(Struct, kw_only=True):
    """Tokens read, special tokens included. Nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingData(Struct, kw_only=True):
    """One embedding; `index` is the place of its text in `input`."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or with encoding_format base64 the base64 of little-endian float32."""


class EmbeddingResponse(Struct, kw_only=True):
    """Answer of POST /v1/embeddings, in the order of `input`."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[EmbeddingData]
    usage: PoolingUsage


class ScoreData(Struct, kw_only=True):
    """The score of pair `index`."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(Struct, kw_only=True):
    """Answer of POST /score, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreData]
    usage: PoolingUsage


class RerankResult(Struct, kw_only=True, omit_defaults=True):
    """One document with its score; `index` is its place in the request."""

    index: int
    document: RerankDocument | None = None
    """Absent with return_documents false."""
    relevance_score: float


class RerankUsage(Struct, kw_only=True):
    """Tokens read."""

    total_tokens: int


class RerankResponse(Struct, kw_only=True):
    """Answer of POST /rerank, the best document first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
