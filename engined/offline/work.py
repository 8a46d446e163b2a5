"""What `LLM` does on the loop of its `EngineThread`: the steps of the HTTP routes, without HTTP."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.pooling import EmbeddingRequest, ScoreRequest, ScoreResponse
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.checks import check_logprobs
from engined.frontend.serving.completions import CompletionServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, run_generation
from engined.frontend.serving.pooling.embeddings import EmbeddingServing
from engined.frontend.serving.pooling.job import PoolingJob
from engined.frontend.serving.pooling.score import ScoreServing
from engined.offline.jobs import Job, Result, prepare_all, run_all
from engined.offline.outputs import EmbeddingOutput, RequestOutput, add_messages, request_output
from engined.offline.progress import Progress
from engined.offline.requests import Inputs

_LABEL = "offline"
"""What stands in the log in place of the id that an HTTP client sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GenerationJob:
    generation: Generation
    prompt: str | None
    is_chat: bool


class OfflineWork:
    """The work of one call. `num_sequences` is how many sequences the engine gets at once, about."""

    def __init__(self, context: ServingContext, progress: Progress, num_sequences: int) -> None:
        self._context = context
        self._progress = progress
        self._num_sequences = num_sequences

    async def complete(self, requests: Inputs[CompletionRequest]) -> list[RequestOutput]:
        """Continue texts. Raises RequestError."""
        return await self._generate(await prepare_all(self._prepare_completion, requests))

    async def chat(self, requests: Inputs[ChatCompletionRequest]) -> list[RequestOutput]:
        """Answer conversations. Raises RequestError."""
        return await self._generate(await prepare_all(self._prepare_chat, requests))

    async def embed(self, requests: Inputs[EmbeddingRequest]) -> list[EmbeddingOutput]:
        """Embed texts. Raises RequestError."""
        prepare = partial(EmbeddingServing(self._context).prepare, arrival_time=time.monotonic(), label=_LABEL)
        return await self._run(self._embed, await prepare_all(prepare, requests), self._num_sequences)

    async def score(self, requests: Inputs[ScoreRequest]) -> list[float]:
        """Score pairs of texts. Raises RequestError."""
        prepare = partial(ScoreServing(self._context).prepare, arrival_time=time.monotonic(), label=_LABEL)
        return await self._run(self._score, await prepare_all(prepare, requests), self._num_sequences)

    async def _prepare_completion(self, request: CompletionRequest) -> _GenerationJob:
        generation = await CompletionServing(self._context).prepare(request, time.monotonic(), _LABEL)
        prompt = request.prompt if isinstance(request.prompt, str) else None
        return _GenerationJob(generation=generation, prompt=prompt, is_chat=False)

    async def _prepare_chat(self, request: ChatCompletionRequest) -> _GenerationJob:
        # The chat API has another name for it, which would not help our caller.
        check_logprobs("logprobs", request.top_logprobs, self._context.server.max_logprobs)
        generation = await ChatServing(self._context).prepare(request, time.monotonic(), _LABEL)
        prompt = self._context.renderer.tokenizer.decode(generation.requests[0].prompt_token_ids)
        return _GenerationJob(generation=generation, prompt=prompt, is_chat=True)

    async def _generate(self, jobs: Inputs[_GenerationJob]) -> list[RequestOutput]:
        most_choices = max((job.generation.choices_per_prompt for job in jobs.items), default=1)
        return await self._run(self._run_generation, jobs, max(1, self._num_sequences // most_choices))

    async def _run(self, run: Callable[[Job], Awaitable[Result]], jobs: Inputs[Job], num_at_once: int) -> list[Result]:
        self._progress.begin(len(jobs.items))
        return await run_all(run, jobs, num_at_once)

    async def _run_generation(self, job: _GenerationJob) -> RequestOutput:
        generation = job.generation
        choices: list[ChoiceOutput] = []
        async with run_generation(self._context.engine, generation, final_only=True) as run:
            while not run.is_finished:
                choices += await run.next_outputs()
        choices.sort(key=lambda choice: choice.index)
        self._progress.advance(generation.usage.num_prompt_tokens + generation.usage.num_completion_tokens)
        output = request_output(generation, job.prompt, choices, self._context.renderer.tokenizer)
        if not job.is_chat:
            return output
        return add_messages(output, generation.formatter.whole(choices, generation.usage)["choices"])

    async def _embed(self, job: PoolingJob) -> EmbeddingOutput:
        [vector] = await self._context.engine.pool(job.requests, job.info)
        prompt_token_ids = job.requests[0].prompt_token_ids
        self._progress.advance(len(prompt_token_ids))
        return EmbeddingOutput(embedding=vector, prompt_token_ids=prompt_token_ids)

    async def _score(self, job: PoolingJob) -> float:
        response = cast(ScoreResponse, job.respond(await self._context.engine.pool(job.requests, job.info)))
        self._progress.advance(response.usage.prompt_tokens)
        return response.data[0].score
