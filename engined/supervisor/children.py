"""What the supervisor starts: the engine core and the frontend, and what each of them is told."""

import os
from dataclasses import dataclass
from pathlib import Path

from engined import faults
from engined.checkpoint.model_info import ModelInfo
from engined.config.directories import cache_directory
from engined.config.memory_plan import MemoryPlan
from engined.config.schema import Config
from engined.process.environment import compute_environment, frontend_environment
from engined.process.heartbeat import Phase
from engined.process.launch import ChildSpec
from engined.protocol.boot import EngineCoreBoot, EngineSettings, FrontendBoot
from engined.protocol.codec import to_builtins
from engined.supervisor.restart_policy import engine_policy, frontend_policy
from engined.supervisor.service import ServiceSpec

CORE = "EngineCore 0"
FRONTEND = "frontend 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that was decided before the first child starts."""

    config: Config
    model_info: ModelInfo
    plan: MemoryPlan
    num_threads: int
    """Compute threads of one rank."""
    engine_socket: Path


FRONTEND_BUDGET = 30.0
"""Seconds that the event loop of a frontend may stand still."""
IDLE_BUDGET = 30.0
"""Seconds between two signs of life of an engine at rest."""


def core_service(deployment: Deployment) -> ServiceSpec:
    """The engine core, kept alive."""
    parallel = deployment.config.parallel
    return ServiceSpec(
        name=CORE,
        make=lambda: core_spec(deployment),
        policy=engine_policy(),
        budgets={
            Phase.STARTING: faults.setting("starting_budget", parallel.startup_timeout),
            Phase.LOADING: faults.setting("loading_budget", parallel.startup_timeout),
            Phase.IDLE: faults.setting("idle_budget", IDLE_BUDGET),
            Phase.STEP: parallel.step_timeout,
        },
    )


def frontend_service(deployment: Deployment, fds: dict[str, int]) -> ServiceSpec:
    """The frontend, kept alive on the same listening sockets."""
    startup_timeout = deployment.config.parallel.startup_timeout
    return ServiceSpec(
        name=FRONTEND,
        make=lambda: frontend_spec(deployment, fds),
        policy=frontend_policy(),
        follows=CORE,
        budgets={
            Phase.STARTING: faults.setting("starting_budget", startup_timeout),
            Phase.LOADING: faults.setting("loading_budget", startup_timeout),
            Phase.SERVING: faults.setting("frontend_budget", FRONTEND_BUDGET),
        },
    )


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
        name=CORE,
        entry="engined.core.main",
        data=to_builtins(EngineCoreBoot(settings=settings, engine_socket=str(deployment.engine_socket))),
        log_level=config.server.log_level,
        log_format=config.server.log_format,
        environment=compute_environment(deployment.num_threads),
    )


def frontend_spec(deployment: Deployment, fds: dict[str, int]) -> ChildSpec:
    """The frontend, with the public listening sockets and the board."""
    config = deployment.config
    boot = FrontendBoot(config=config, model_info=deployment.model_info, engine_socket=str(deployment.engine_socket))
    return ChildSpec(
        name=FRONTEND,
        entry="engined.frontend.main",
        data=to_builtins(boot),
        log_level=config.server.log_level,
        log_format=config.server.log_format,
        fds=fds,
        environment=frontend_environment(),
    )
