"""What the serving layer works with. Frontend process; built once by `app`."""

from dataclasses import dataclass

from engined.config.schema import ServerConfig
from engined.errors import RequestError
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.rendering.renderer import Renderer
from engined.frontend.serving.sampling import SamplingResolver


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingContext:
    """One model behind one engine."""

    model_names: tuple[str, ...]
    """What clients may call it; responses name the first."""
    created: int
    """Unix time of the start."""
    engine: AsyncLLM
    renderer: Renderer
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
