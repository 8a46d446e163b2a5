"""From a conversation to a `Generation`. Frontend process; called by every route that takes messages.

/v1/chat/completions sends its body as it is; the other APIs put theirs into the same request, and give a formatter of
their own for the answer.
"""

import functools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.parsing.formats import new_parser
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.start_state import StartState
from engined.frontend.rendering.messages import content_text
from engined.frontend.rendering.renderer import EngineInput, PromptExtras
from engined.frontend.serving.chat_format import ChatFormatter, ChatShape
from engined.frontend.serving.chat_messages import convert_messages, to_template_messages
from engined.frontend.serving.chat_settings import resolve_chat_options, resolve_chat_settings
from engined.frontend.serving.checks import truncation_side
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, ResponseFormatter, Usage
from engined.frontend.serving.parsed_choices import MessageParsing
from engined.frontend.serving.reasoning import Constrained, reasoning_spec, start_state
from engined.frontend.serving.requests import OutputRules, build_requests
from engined.frontend.serving.tool_constraint import resolve_answer_grammar
from engined.frontend.serving.tools import ToolUse, resolve_tools
from engined.protocol.grammar import GrammarSpec
from engined.protocol.reasoning import ReasoningSpec
from engined.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResult:
    """A conversation that was checked and rendered: what the formatter of its answer may need to know."""

    response_id: str
    created: int
    """Unix seconds."""
    model: str
    """The name that responses carry."""
    num_choices: int
    engine_input: EngineInput
    sampling: SamplingParams
    """As resolved for the first choice: `max_tokens` is what the context really leaves."""
    logprobs: LogprobFormatter | None
    """Given if the request asked for log-probabilities of the answer or of the prompt."""
    parsing: MessageParsing
    """How reasoning, content and calls are found in the answers."""


MakeFormatter = Callable[[ChatResult], ResponseFormatter]


class ChatServing:
    """Turns conversations into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def prepare(
        self,
        request: ChatCompletionRequest,
        arrival_time: float,
        label: str,
        *,
        response_id: str | None = None,
        make_formatter: MakeFormatter | None = None,
    ) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault.

        An API with ids and answers of its own gives `response_id`, which must be new, and `make_formatter`.
        """
        context = self._context
        tools = self._check_request(request)
        settings = resolve_chat_settings(request, tools, context)
        grammar = await resolve_answer_grammar(await context.resolve_constraint(request), tools, context)
        engine_input = await self.render(request, min_output_tokens=1)
        room = context.engine.require_ready().max_model_len - len(engine_input.prompt_token_ids)
        sampling = context.sampling.resolve(request, settings.max_tokens, room, settings.logprobs)
        state = self._start_state(request, engine_input)
        reasoning = self._reasoning_spec(state, settings.reasoning_budget, tools, grammar)
        result = ChatResult(
            response_id=response_id or f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=context.model_names[0],
            num_choices=settings.num_choices,
            engine_input=engine_input,
            sampling=sampling,
            logprobs=self._logprob_formatter(request),
            parsing=self._parsing(request, tools, state),
        )
        return Generation(
            response_id=result.response_id,
            label=request.request_id or label,
            requests=build_requests(
                result.response_id,
                [engine_input],
                [sampling],
                settings.num_choices,
                request.priority or 0,
                arrival_time,
                OutputRules(grammar=grammar, reasoning=reasoning),
            ),
            choices_per_prompt=settings.num_choices,
            options=settings.options,
            formatter=_make_chat_formatter(request, result) if make_formatter is None else make_formatter(result),
            usage=Usage(num_prompt_tokens=len(engine_input.prompt_token_ids)),
            arrival_time=arrival_time,
            time_limits=settings.time_limits,
        )

    async def check(self, request: ChatCompletionRequest) -> None:
        """Raises RequestError for all that `prepare` would refuse without looking at the messages.

        For routes that take the body of a generation and compute its prompt only.
        """
        context = self._context
        tools = self._check_request(request)
        settings = resolve_chat_settings(request, tools, context)
        room = context.engine.require_ready().max_model_len
        context.sampling.resolve(request, settings.max_tokens, room, settings.logprobs)
        await resolve_answer_grammar(await context.resolve_constraint(request), tools, context)

    async def render(self, request: ChatCompletionRequest, *, min_output_tokens: int) -> EngineInput:
        """The prompt of a conversation, which leaves room in the context for at least `min_output_tokens`.

        Raises RequestError for faulty messages, and ContextLengthError if they are too long.
        """
        extras = PromptExtras(
            param="messages",
            add_bos=request.add_special_tokens is not False,
            truncate_prompt_tokens=request.truncate_prompt_tokens,
            truncation_side=truncation_side(request),
            cache_salt=request.cache_salt,
            min_output_tokens=min_output_tokens,
        )
        max_model_len = self._context.engine.require_ready().max_model_len
        messages = await convert_messages(request.messages)
        options = resolve_chat_options(request, self._resolve_tools(request), self._context)
        return await self._context.renderer.render_chat(messages, options, extras, max_model_len)

    async def tokenize(self, request: ChatCompletionRequest) -> EngineInput:
        """The prompt of a conversation, untruncated, even if it does not fit the context: for those who count.

        Raises RequestError for faulty messages.
        """
        extras = PromptExtras(param="messages", add_bos=request.add_special_tokens is not False)
        max_model_len = self._context.engine.require_ready().max_model_len
        messages = await convert_messages(request.messages)
        options = resolve_chat_options(request, self._resolve_tools(request), self._context)
        return await self._context.renderer.tokenize_chat(messages, options, extras, max_model_len)

    def _check_request(self, request: ChatCompletionRequest) -> ToolUse:
        """Check what is refused first, whatever else is wrong; what the request makes of tools."""
        context = self._context
        context.require_runner("generate", "/v1/chat/completions")
        context.check_model(request.model)
        context.engine.require_ready()
        return self._resolve_tools(request)

    def _resolve_tools(self, request: ChatCompletionRequest) -> ToolUse:
        return resolve_tools(request, self._context.output_format.tools)

    def _start_state(self, request: ChatCompletionRequest, engine_input: EngineInput) -> StartState:
        continued = None
        if request.continue_final_message:
            continued = content_text(to_template_messages(request.messages)[-1])
        return start_state(self._context.output_format.reasoning, engine_input.prompt_text or "", continued)

    def _reasoning_spec(
        self, state: StartState, budget: int | None, tools: ToolUse, grammar: GrammarSpec | None
    ) -> ReasoningSpec | None:
        constrained: Constrained = "nothing"
        if grammar is not None:
            constrained = "content" if tools.mode == "none" else "calls"
        return reasoning_spec(self._context.output_format.reasoning, state, budget, constrained)

    def _parsing(self, request: ChatCompletionRequest, tools: ToolUse, state: StartState) -> MessageParsing:
        output_format, tokenizer = self._context.output_format, self._context.renderer.tokenizer
        parser_context = ParserContext(
            tools={tool.name: tool.parameters for tool in tools.callable}, is_reasoning_open=state == "open"
        )
        return MessageParsing(
            new_parser=functools.partial(new_parser, output_format, parser_context),
            count_tokens=lambda text: len(tokenizer.encode(text)),
            has_parallel_calls=tools.is_parallel,
            includes_reasoning=request.include_reasoning is not False or not output_format.finds_reasoning,
            reports_tool_calls=not tools.is_named,
            call_ids="random" if output_format.tools is None else output_format.tools.call_ids,
            num_earlier_calls=sum(len(message.tool_calls or ()) for message in request.messages),
        )

    def _logprob_formatter(self, request: ChatCompletionRequest) -> LogprobFormatter | None:
        if not request.logprobs and request.prompt_logprobs is None:
            return None
        tokens_as_ids = bool(request.return_tokens_as_token_ids)
        return LogprobFormatter(self._context.renderer.tokenizer, request.top_logprobs or 0, tokens_as_ids)


def _make_chat_formatter(request: ChatCompletionRequest, result: ChatResult) -> ChatFormatter:
    stream_options = request.stream_options
    last = request.messages[-1:] if request.echo and request.messages[-1].role == "assistant" else []
    shape = ChatShape(
        response_id=result.response_id,
        created=result.created,
        model=result.model,
        num_choices=result.num_choices,
        echo_text="".join(map(content_text, to_template_messages(last))) if last else "",
        # Those of the reasoning would tell what it says.
        has_logprobs=bool(request.logprobs) and result.parsing.includes_reasoning,
        has_prompt_logprobs=request.prompt_logprobs is not None,
        has_token_ids=bool(request.return_token_ids) and result.parsing.includes_reasoning,
        prompt_token_ids=result.engine_input.prompt_token_ids if request.return_token_ids else None,
        prompt_text=result.engine_input.prompt_text if request.return_prompt_text else None,
        include_usage=bool(stream_options is not None and stream_options.include_usage),
        continuous_usage=bool(stream_options is not None and stream_options.continuous_usage_stats),
    )
    return ChatFormatter(shape, result.logprobs, result.parsing)
