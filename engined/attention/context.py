"""The forward context: how the batch's metadata reaches the attention layers. The only ambient state of engined.

The model runner sets it around one forward; layers read it. So a model's `forward` keeps one signature, which a
compiled or captured graph needs. It belongs to the thread that set it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from engined.attention.backend import AttentionBackend
from engined.attention.metadata import AttentionMetadata


class ForwardContext:
    """The metadata of one forward, and what the backends made of it."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        self._prepared: dict[AttentionBackend, Any] = {}

    def prepared_by(self, backend: AttentionBackend) -> Any:
        """The backend's own form of the metadata, made when its first layer asks and shared by the others."""
        if backend not in self._prepared:
            self._prepared[backend] = backend.prepare(self.metadata)
        return self._prepared[backend]


_current: ContextVar[ForwardContext] = ContextVar("forward_context")


@contextmanager
def forward_context(metadata: AttentionMetadata) -> Iterator[None]:
    """Make `metadata` that of every attention layer called inside the `with` block."""
    token = _current.set(ForwardContext(metadata))
    try:
        yield
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """The context of the forward that is running. A programmer error outside of `forward_context`."""
    context = _current.get(None)
    assert context is not None, "an attention layer was called outside of forward_context"
    return context
