"""Picks the attention backend. Called once by the model runner, before the KV cache is made."""

from engined.attention.backend import AttentionBackend, AttentionSpec
from engined.attention.cpu_paged import CpuPagedAttention
from engined.errors import UnsupportedModelError

# In order of preference.
BACKENDS: tuple[type[AttentionBackend], ...] = (CpuPagedAttention,)


def select_backend(spec: AttentionSpec) -> AttentionBackend:
    """The first backend that supports `spec`. Raises UnsupportedModelError with each backend's reasons if none does."""
    refusals = []
    for backend in BACKENDS:
        reasons = backend.refusals(spec)
        if not reasons:
            return backend(spec)
        refusals.append(f"{backend.name}: {', '.join(reasons)}")
    raise UnsupportedModelError(f"no attention backend fits this model: {'; '.join(refusals)}")
