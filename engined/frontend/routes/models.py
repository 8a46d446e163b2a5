"""GET /v1/models and /v1/models/{id}. Frontend process."""

from aiohttp import web

from engined.frontend.api.models import Capabilities, ModelCard, ModelList
from engined.frontend.api.operation import READ_ERRORS, Operation, Parameter
from engined.frontend.http_errors import struct_response
from engined.frontend.serving.context import ServingContext


class ModelRoutes:
    """The names under which the one model is served, and what it can do."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes. An id may contain slashes."""
        router.add_get("/v1/models", self.list_models)
        router.add_get("/v1/models/{model:.+}", self.get_model)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        model = Parameter(name="model", where="path", description="A name of the model; it may contain slashes.")
        return (
            Operation(method="GET", path="/v1/models", summary="List the models", tag="Models", response=ModelList),
            Operation(
                method="GET",
                path="/v1/models/{model}",
                summary="One model: its context length and what it can do",
                tag="Models",
                parameters=(model,),
                response=ModelCard,
                error_statuses=(404, *READ_ERRORS),
            ),
        )

    async def list_models(self, request: web.Request) -> web.Response:
        """All names."""
        return struct_response(ModelList(data=[self._card(name) for name in self._context.model_names]))

    async def get_model(self, request: web.Request) -> web.Response:
        """One name; 404 model_not_found for any other."""
        name = request.match_info["model"]
        self._context.check_model(name)
        return struct_response(self._card(name))

    def _card(self, name: str) -> ModelCard:
        context = self._context
        ready = context.engine.ready
        return ModelCard(
            id=name,
            created=context.created,
            owned_by="engined",
            root=context.model_names[0],
            parent=None,
            max_model_len=None if ready is None else ready.max_model_len,
            runner=context.model_info.runner,
            capabilities=self._capabilities(),
        )

    def _capabilities(self) -> Capabilities:
        info, output_format = self._context.model_info, self._context.output_format
        generates = info.runner == "generate"
        chats = generates and self._context.renderer.chat_template is not None
        return Capabilities(
            chat=chats,
            completions=generates,
            embeddings=not generates and info.num_labels == 0,
            score=not generates,
            tools=chats and output_format.tools is not None,
            structured_outputs=generates,
            reasoning=chats and output_format.reasoning is not None,
            vision=False,
            audio=False,
        )
