"""What the supervisor starts: the engine core and the frontend, and what each of them is told."""

import os
from dataclasses import dataclass
from pathlib import Path

from engined.checkpoint.model_info import ModelInfo
from engined.config.directories import cache_directory
from engined.config.memory_plan import MemoryPlan
from engined.config.schema import Config
from engined.process.environment import compute_environment
from engined.process.launch import ChildSpec
from engined.protocol.boot import EngineCoreBoot, EngineSettings, FrontendBoot
from engined.protocol.codec import to_builtins


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that was decided before the first child starts."""

    config: Config
    model_info: ModelInfo
    plan: MemoryPlan
    num_threads: int
    """Compute threads of one rank."""
    engine_socket: Path


def core_spec(deployment: Deployment) -> ChildSpec:
    """The engine core."""
    config, plan = deployment.config, deployment.plan
    settings = EngineSettings(
        config=config,
        model_info=deployment.model_info,
        dtype=plan.dtype,
        kv_cache_dtype=plan.kv_cache_dtype,
        num_kv_blocks=plan.num_kv_blocks,
        max_model_len=plan.max_model_len,
        num_threads=deployment.num_threads,
        kernel_cache=str(cache_directory(os.environ) / "kernels"),
    )
    return ChildSpec(
        name="EngineCore 0",
        entry="engined.core.main",
        data=to_builtins(EngineCoreBoot(settings=settings, engine_socket=str(deployment.engine_socket))),
        log_level=config.server.log_level,
        environment=compute_environment(deployment.num_threads),
    )


def frontend_spec(deployment: Deployment, fds: dict[str, int]) -> ChildSpec:
    """The frontend, with the public listening sockets."""
    config = deployment.config
    boot = FrontendBoot(config=config, model_info=deployment.model_info, engine_socket=str(deployment.engine_socket))
    return ChildSpec(
        name="frontend 0",
        entry="engined.frontend.main",
        data=to_builtins(boot),
        log_level=config.server.log_level,
        fds=fds,
    )
