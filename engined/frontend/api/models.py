"""What GET /v1/models answers. Frontend process."""

from typing import Literal

from msgspec import Struct


class Capabilities(Struct, kw_only=True):
    """What the model can do on this server; each has its route or its field."""

    chat: bool
    """/v1/chat/completions, /v1/responses and /v1/messages: it generates text and has a chat template."""
    completions: bool
    embeddings: bool
    score: bool
    """/v1/score and /v1/rerank."""
    tools: bool
    """It is told of tools, and its calls are found in its answers."""
    structured_outputs: bool
    reasoning: bool
    """Its reasoning is told apart from its answers."""
    vision: bool
    audio: bool


class ModelCard(Struct, kw_only=True):
    """One name of the model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time at which the server started."""
    owned_by: str
    root: str
    """The first name of the same model."""
    parent: str | None
    """The model that an adapter belongs to; null without one."""
    max_model_len: int | None
    """Tokens that prompt and output may have together; null while the model loads."""
    runner: Literal["generate", "pooling"]
    """Whether the model answers with tokens, or with an embedding or a score."""
    capabilities: Capabilities


class ModelList(Struct, kw_only=True):
    """All names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
