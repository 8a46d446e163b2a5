"""`LLM`: a model as a Python object. Caller's process; the engine itself is a child process, as in a daemon."""

import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from engined.errors import RequestError
from engined.offline.engine_thread import EngineThread
from engined.offline.options import offline_config
from engined.offline.outputs import EmbeddingOutput, RequestOutput
from engined.offline.progress import Progress
from engined.offline.requests import (
    ChatFields,
    Conversation,
    Inputs,
    Prompt,
    as_conversations,
    as_pairs,
    as_prompts,
    chat_request,
    check_chat_fields,
    completion_request,
    embedding_request,
    one_for_each,
    score_request,
)
from engined.offline.sampling_params import SamplingParams
from engined.offline.work import OfflineWork
from engined.supervisor.run import plan_serving

T = TypeVar("T")
R = TypeVar("R")

_SEQUENCES_PER_SLOT = 2
"""Sequences that the engine is given for each one that it runs: whenever one ends, the next is there."""


class LLM:
    """One model, loaded when the object is made and gone when it is closed, collected, or the program ends.

        with LLM() as llm:
            for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    Any thread may call its methods, several at a time too. Ctrl-C ends the call and leaves the object usable. Inputs
    are checked before anything runs: RequestError names the one that is at fault, and the field. If the engine dies,
    calls raise EngineDeadError with the cause, and so do those that follow.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Load `model`: a Hugging Face folder, a .gguf file, a catalogue name or a hub id; by default a small one.

        `options` are those of `engined serve` but for the HTTP ones, in their Python spelling: `max_num_seqs=8`,
        `kv_cache_memory="2GiB"`. Raises ConfigError, ModelError, or StartupError if the engine does not come up.
        """
        config = offline_config(model, options)
        plan = plan_serving(config)
        self._model_info = plan.model_info
        self._num_sequences = _SEQUENCES_PER_SLOT * config.scheduler.max_num_seqs
        self._engine = EngineThread(config, plan)
        # It also runs when the program ends.
        weakref.finalize(self, self._engine.close)
        try:
            self._engine.start()
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue one text, or a list of texts; token ids may stand in place of a text.

        `sampling_params` are for all, or one for each. Results come in the order of the prompts.
        """
        self._require_runner("generate", "generate")
        inputs = as_prompts(prompts, "prompts")
        requests = _build(inputs, sampling_params, completion_request)
        return self._run("prompt", use_tqdm, lambda work: work.complete(requests))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **fields: Unpack[ChatFields],
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages), or a list of conversations.

        `fields` are fields of the HTTP API, for all conversations: `tools` and `tool_choice`, for example. Results come
        in the order of the conversations; `outputs[0].message` has the tool calls and the reasoning.
        """
        self._require_runner("generate", "chat")
        check_chat_fields(fields)
        inputs = as_conversations(messages)
        requests = _build(inputs, sampling_params, lambda item, params: chat_request(item, params, fields))
        return self._run("conversation", use_tqdm, lambda work: work.chat(requests))

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[EmbeddingOutput]:
        """The vectors of one text, or of a list of texts, in their order; needs a model that makes embeddings.

        The last two arguments are the fields of the HTTP API.
        """
        self._require_runner("pooling", "embed")
        options = {"dimensions": dimensions, "truncate_prompt_tokens": truncate_prompt_tokens}
        inputs = as_prompts(texts, "texts")
        requests = _build(inputs, None, lambda text, _: embedding_request(text, options))
        return self._run("text", use_tqdm, lambda work: work.embed(requests))

    def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str], *, use_tqdm: bool = True) -> list[float]:
        """How well each text of `text_2` fits the one at its place in `text_1`, or the only one there.

        A cross-encoder reads both; another pooling model gives the cosine of their embeddings.
        """
        self._require_runner("pooling", "score")
        requests = _build(as_pairs(text_1, text_2), None, lambda pair, _: score_request(*pair))
        return self._run("pair", use_tqdm, lambda work: work.score(requests))

    def close(self) -> None:
        """End the engine, within seconds whatever it does; the object is of no use afterwards. Idempotent."""
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        unit: str,
        use_tqdm: bool,
        start: Callable[[OfflineWork], Coroutine[Any, Any, T]],
    ) -> T:
        with Progress(unit, is_shown=use_tqdm) as progress:
            return self._engine.call(lambda context: start(OfflineWork(context, progress, self._num_sequences)))

    def _require_runner(self, runner: Literal["generate", "pooling"], method: str) -> None:
        info = self._model_info
        if info.runner == runner:
            return
        if info.runner == "generate":
            kind, methods = "generates text", "generate or chat"
        elif info.num_labels == 0:
            kind, methods = "makes embeddings", "embed or score"
        else:
            kind, methods = "scores pairs of texts", "score"
        raise RequestError(f"{method}: the model {info.name!r} {kind}; use {methods}", code="unsupported_model")


def _build(
    inputs: Inputs[T],
    params: SamplingParams | Sequence[SamplingParams] | None,
    make: Callable[[T, SamplingParams], R],
) -> Inputs[R]:
    requests = []
    for index, (item, settings) in enumerate(zip(inputs.items, one_for_each(params, len(inputs.items)), strict=True)):
        with inputs.at(index):
            requests.append(make(item, settings))
    return Inputs(requests, inputs.name)
