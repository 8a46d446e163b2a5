"""What the serving layer works with. Frontend process; built once by `app`."""

from dataclasses import dataclass
from typing import Literal

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import ServerConfig
from engined.errors import RequestError
from engined.frontend.api.fields import GenerationFields
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.off_loop import call_off_loop
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.rendering.grammar_checker import GrammarChecker
from engined.frontend.rendering.renderer import Renderer
from engined.frontend.serving.constraints import Constraint, resolve_constraint
from engined.frontend.serving.sampling import SamplingResolver
from engined.protocol.grammar import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingContext:
    """One model behind one engine."""

    model_names: tuple[str, ...]
    """What clients may call it; responses name the first."""
    created: int
    """Unix time of the start."""
    model_info: ModelInfo
    engine: AsyncLLM
    renderer: Renderer
    output_format: OutputFormat
    """What is looked for in answers."""
    grammar_checker: GrammarChecker
    sampling: SamplingResolver
    server: ServerConfig
    has_priority: bool
    """Whether the scheduler heeds priorities."""

    def check_model(self, model: str | None) -> None:
        """Raises RequestError 404 if the request names another model; silence means the one that is served."""
        if model is not None and model not in self.model_names:
            raise RequestError(
                f"the model {model[:128]!r} does not exist; this server has {self.model_names[0]!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def resolve_grammar(self, request: GenerationFields) -> GrammarSpec | None:
        """What the answer must match. Raises RequestError if it is faulty, or cannot be kept."""
        constraint = await self.resolve_constraint(request)
        if constraint is None:
            return None
        await self.grammar_checker.check(constraint.grammar, constraint.param)
        return constraint.grammar

    async def resolve_constraint(self, request: GenerationFields) -> Constraint | None:
        """The same, not compiled yet, and with the field that says so. Raises RequestError if it is faulty."""
        is_free = request.response_format is None and request.structured_outputs is None
        return await call_off_loop(resolve_constraint, request, is_large=not is_free)

    def require_runner(self, runner: Literal["generate", "pooling"], route: str) -> None:
        """Raises RequestError 400 if the model is of the other kind; the message names the routes that it answers."""
        if self.model_info.runner != runner:
            raise self.wrong_route(route)

    def close(self) -> None:
        """End the threads, and the process that compiles grammars."""
        self.renderer.close()
        self.grammar_checker.close()

    def wrong_route(self, route: str) -> RequestError:
        """The refusal of a route that the model has no answer for."""
        return RequestError(
            f"{route}: the model {self.model_names[0]!r} {_describe_purpose(self.model_info)}",
            param="model",
            code="unsupported_model",
        )


def _describe_purpose(info: ModelInfo) -> str:
    if info.runner == "generate":
        return "generates text; use /v1/chat/completions or /v1/completions"
    if info.num_labels == 0:
        return "makes embeddings; use /v1/embeddings, /v1/score or /v1/rerank"
    if info.num_labels == 1:
        return "scores pairs of texts; use /v1/score or /v1/rerank"
    return f"sorts texts into {info.num_labels} classes, for which there is no route; serve another model"
