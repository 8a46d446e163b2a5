"""POST /v1/completions: from the body to a `Generation`. Frontend process; called by the route."""

import time
import uuid
from collections.abc import Sequence
from typing import cast

from engined.errors import RequestError
from engined.frontend.api.completions import MAX_PROMPTS, CompletionRequest
from engined.frontend.output.detokenizer import IncrementalDetokenizer
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.rendering.renderer import EngineInput, PromptExtras, TokenIds
from engined.frontend.serving.checks import (
    check_common,
    check_logprobs,
    check_max_tokens,
    resolve_time_limits,
    truncation_side,
)
from engined.frontend.serving.completion_format import CompletionFormatter, CompletionShape, EchoedPrompt
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, Usage
from engined.frontend.serving.requests import OutputRules, build_requests
from engined.frontend.serving.sampling import LogprobsWanted, resolve_num_choices, resolve_output_options
from engined.tokenization.tokenizer import ModelTokenizer

MAX_SEQUENCES = 256
"""Prompts times choices of one HTTP request."""
DEFAULT_MAX_TOKENS = 16


class CompletionServing:
    """Turns completion requests into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def prepare(self, request: CompletionRequest, arrival_time: float, label: str) -> Generation:
        """Check and tokenize one request. Raises RequestError for everything that is the client's fault."""
        context = self._context
        context.require_runner("generate", "/v1/completions")
        context.check_model(request.model)
        ready = context.engine.require_ready()
        check_common(request, has_priority=context.has_priority)
        prompts = parse_prompts(request.prompt)
        num_choices = resolve_num_choices(request)
        if len(prompts) * num_choices > MAX_SEQUENCES:
            raise RequestError(f"prompts times n may be at most {MAX_SEQUENCES}: lower n", param="n")
        logprobs = self._resolve_logprobs(request)
        max_tokens = check_max_tokens("max_tokens", request.max_tokens, 0)
        options = resolve_output_options(request, context.server.stream_interval)
        time_limits = resolve_time_limits(request)
        grammar = await context.resolve_grammar(request)
        inputs = await context.renderer.render_completion(
            prompts, _prompt_extras(request, max_tokens), ready.max_model_len
        )
        samplings = [
            context.sampling.resolve(
                request, max_tokens, ready.max_model_len - len(item.prompt_token_ids), logprobs, DEFAULT_MAX_TOKENS
            )
            for item in inputs
        ]
        response_id = f"cmpl-{uuid.uuid4().hex}"
        return Generation(
            response_id=response_id,
            label=request.request_id or label,
            requests=build_requests(
                response_id,
                inputs,
                samplings,
                num_choices,
                request.priority or 0,
                arrival_time,
                OutputRules(grammar=grammar),
            ),
            choices_per_prompt=num_choices,
            options=options,
            formatter=self._formatter(request, response_id, num_choices, inputs),
            usage=Usage(num_prompt_tokens=sum(len(item.prompt_token_ids) for item in inputs)),
            arrival_time=arrival_time,
            time_limits=time_limits,
        )

    def _resolve_logprobs(self, request: CompletionRequest) -> LogprobsWanted:
        max_logprobs = self._context.server.max_logprobs
        generated = check_logprobs("logprobs", request.logprobs, max_logprobs)
        prompt = check_logprobs("prompt_logprobs", request.prompt_logprobs, max_logprobs)
        if request.echo and generated is not None:
            prompt = max(generated, prompt or 0)
        return LogprobsWanted(generated=generated, prompt=prompt)

    def _formatter(
        self, request: CompletionRequest, response_id: str, num_choices: int, inputs: Sequence[EngineInput]
    ) -> CompletionFormatter:
        tokenizer = self._context.renderer.tokenizer
        stream_options = request.stream_options
        logprobs = None
        if request.logprobs is not None or request.prompt_logprobs is not None:
            logprobs = LogprobFormatter(tokenizer, request.logprobs or 0, bool(request.return_tokens_as_token_ids))
        shape = CompletionShape(
            response_id=response_id,
            created=int(time.time()),
            model=self._context.model_names[0],
            choices_per_prompt=num_choices,
            prompts=[echo_prompt(tokenizer, item) for item in inputs] if request.echo else None,
            has_logprobs=request.logprobs is not None,
            has_prompt_logprobs=request.prompt_logprobs is not None,
            returned_prompt_ids=([item.prompt_token_ids for item in inputs] if request.return_token_ids else None),
            returned_prompt_texts=(
                [_prompt_text(tokenizer, item) for item in inputs] if request.return_prompt_text else None
            ),
            include_usage=bool(stream_options is not None and stream_options.include_usage),
            continuous_usage=bool(stream_options is not None and stream_options.continuous_usage_stats),
        )
        return CompletionFormatter(shape, logprobs)


def parse_prompts(prompt: str | list[int | str | list[int]]) -> list[str | TokenIds]:
    """The four forms of `prompt` as a list of texts or of token ids. Raises RequestError."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is empty: send a text, token ids, or a list of them", param="prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise RequestError("prompt mixes texts and token ids: send one kind", param="prompt")
    if kinds == {int}:
        return [cast(TokenIds, prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt may hold {MAX_PROMPTS} prompts, not {len(prompt)}", param="prompt")
    return cast("list[str | TokenIds]", prompt)


def echo_prompt(tokenizer: ModelTokenizer, engine_input: EngineInput) -> EchoedPrompt:
    """The prompt as its choices begin with it."""
    text = _prompt_text(tokenizer, engine_input)
    detokenizer = IncrementalDetokenizer(tokenizer.backend, (), skip_special_tokens=False)
    offsets, length = [], 0
    for token_id in engine_input.prompt_token_ids:
        offsets.append(min(length, len(text)))
        length += len(detokenizer.decode(token_id))
    return EchoedPrompt(token_ids=engine_input.prompt_token_ids, text=text, text_offsets=offsets)


def _prompt_text(tokenizer: ModelTokenizer, engine_input: EngineInput) -> str:
    if engine_input.prompt_text is not None:
        return engine_input.prompt_text
    return tokenizer.decode(engine_input.prompt_token_ids)


def _prompt_extras(request: CompletionRequest, max_tokens: int | None) -> PromptExtras:
    adds_special = request.add_special_tokens is not False
    return PromptExtras(
        param="prompt",
        add_bos=adds_special,
        add_eos=adds_special,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=truncation_side(request),
        cache_salt=request.cache_salt,
        min_output_tokens=0 if max_tokens == 0 else 1,
    )
