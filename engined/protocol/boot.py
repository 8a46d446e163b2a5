"""What a parent hands to each kind of child when it starts it. Every "auto" has been resolved by then."""

from dataclasses import dataclass
from typing import Literal

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """All that the engine core and each of its ranks must know to build themselves."""

    config: Config
    model_info: ModelInfo
    dtype: Literal["bfloat16", "float32"]
    kv_cache_dtype: Literal["bfloat16", "float32", "int8"]
    num_kv_blocks: int
    max_model_len: int
    num_threads: int
    """Compute threads of one rank."""
    kernel_cache: str | None = None
    """Folder of the kernels that are built on this machine; None computes with plain torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreBoot:
    """Supervisor to engine core."""

    settings: EngineSettings
    engine_socket: str
    """Path that the core listens on for frontends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendBoot:
    """Supervisor to frontend. The listening sockets "http" and "uds" come as inherited descriptors."""

    config: Config
    model_info: ModelInfo
    engine_socket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBoot:
    """Engine core to one rank; the link comes as the inherited descriptor "link"."""

    settings: EngineSettings
    rank: int
    rendezvous: str
    """File through which the ranks of the group find each other."""
