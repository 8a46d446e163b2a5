"""Picks the attention backend. Called once by the model runner, before the KV cache is made."""

from engined.attention.backend import AttentionBackend, AttentionSpec
from engined.attention.cpu_kernel import CpuKernelAttention
from engined.attention.cpu_paged import CpuPagedAttention
from engined.errors import UnsupportedModelError
from engined.kernels.cpu.library import CpuKernels

# In order of preference.
BACKENDS: tuple[type[AttentionBackend], ...] = (CpuKernelAttention, CpuPagedAttention)


def select_backend(spec: AttentionSpec, kernels: CpuKernels | None) -> AttentionBackend:
    """The first backend that supports `spec`. Raises UnsupportedModelError with each backend's reasons if none does."""
    refusals = []
    for backend in BACKENDS:
        reasons = backend.refusals(spec, kernels)
        if not reasons:
            return backend(spec, kernels)
        refusals.append(f"{backend.name}: {', '.join(reasons)}")
    raise UnsupportedModelError(f"no attention backend fits this model: {'; '.join(refusals)}")
