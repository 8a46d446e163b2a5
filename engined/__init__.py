"""engined: an LLM inference server, and its engine as a library: `from engined import LLM, SamplingParams`.

Importing this package loads nothing heavy: what it exports is loaded when it is first used. The types are in the stub
beside this file.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "LLM": "engined.offline.llm",
    "SamplingParams": "engined.offline.sampling_params",
    "RequestOutput": "engined.offline.outputs",
    "CompletionOutput": "engined.offline.outputs",
    "EmbeddingOutput": "engined.offline.outputs",
    "Logprob": "engined.offline.outputs",
}
"""Where each exported name is defined."""

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
