"""All that the frontend keeps of one running sequence. Frontend process; owned by `OutputProcessor`."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.detokenizer import IncrementalDetokenizer
from engined.frontend.output.stop_strings import StopStringMatcher
from engined.protocol.engine import EngineCoreRequest, Finished, FinishReason, Started, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What a request wants of its text; the engine never sees these."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    kept_tokens: frozenset[str] = frozenset()
    """Special tokens that stay in the text all the same, because a parser looks for them."""
    stream_interval: int = 1
    """Tokens between two deltas. The first token and the end are never delayed."""


@dataclass(slots=True, kw_only=True)
class SequenceTimes:
    """Seconds of CLOCK_MONOTONIC; None until it happened."""

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class RequestState:
    """Detokenizer, stop strings and pending delta of one sequence.

    Tokens are taken one by one, whatever the engine sends in a step, so that the text and the place where a stop string
    cuts it do not depend on the cutting into steps.
    """

    def __init__(
        self,
        request: EngineCoreRequest,
        index: int,
        options: OutputOptions,
        backend: Tokenizer,
        collector: RequestOutputCollector,
    ) -> None:
        self.request_id = request.request_id
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_generated_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens from the prefix cache, known once it has started."""
        self.num_waiting_tokens: int | None = None
        """What it counts with in the backlog, as long as it is there."""
        self.collector = collector
        self.times = SequenceTimes(arrival=request.arrival_time)
        self.finish_reason: str | None = None
        self.index = index
        self.is_plain = False
        """Whether the next tokens can be taken by `take_text`."""
        self._options = options
        self._min_tokens = request.sampling.min_tokens
        self._detokenizer = IncrementalDetokenizer(
            backend, request.prompt_token_ids, options.skip_special_tokens, options.kept_tokens
        )
        self._stop_strings = (
            StopStringMatcher(options.stop, options.include_stop_str_in_output) if options.stop else None
        )
        self._can_be_plain = not options.stop and options.stream_interval == 1 and request.sampling.logprobs is None
        self._pending = ChoiceOutput(index=index)
        self._text_length = 0
        self._num_reported_tokens = 0

    def update(
        self, token_ids: list[int], logprobs: list[TokenLogprobs], finished: Finished | None
    ) -> ChoiceOutput | None:
        """Take the tokens of one step; the delta to deliver, or None if nothing is due yet.

        Afterwards `finish_reason` tells whether the sequence is over: by `finished`, or by a stop string, in which case
        the engine still has to be told.
        """
        stop_token_ended_it = (
            finished is not None and finished.reason is FinishReason.STOP and not finished.is_grammar_complete
        )
        for position, token_id in enumerate(token_ids):
            is_stop_token = stop_token_ended_it and position == len(token_ids) - 1
            is_visible = not is_stop_token or self._options.include_stop_str_in_output
            self._append(token_id, logprobs[position] if logprobs else None, is_visible=is_visible)
            if self.finish_reason is not None:
                break
        if finished is not None and self.finish_reason is None:
            self._finish(finished)
        return self._take_if_due()

    def take_text(self, token_ids: list[int]) -> str:
        """As `update`, for a sequence that `is_plain` and goes on: its next text, all of which is due at once."""
        self.num_generated_tokens += len(token_ids)
        self._num_reported_tokens = self.num_generated_tokens
        if len(token_ids) == 1:
            return self._detokenizer.decode(token_ids[0])
        return "".join(map(self._detokenizer.decode, token_ids))

    def end(self, stop_reason: str) -> ChoiceOutput:
        """The last delta of a sequence that is given up, with all the text that is there."""
        output = self.update([], [], Finished(reason=FinishReason.ABORT))
        assert output is not None
        output.stop_reason = stop_reason
        return output

    def note_started(self, started: Started) -> None:
        """Record when the sequence first ran; a second call (after a preemption) changes nothing."""
        if self.times.scheduled is None:
            self.times.scheduled = started.scheduled_time
            self.num_cached_tokens = self._pending.num_cached_tokens = started.num_cached_tokens

    def note_prompt_logprobs(self, prompt_logprobs: list[TokenLogprobs]) -> None:
        """Add the next positions of the prompt."""
        self._pending.prompt_logprobs += prompt_logprobs

    def note_pooled(self, pooled: list[float]) -> None:
        """Take the result of a pooled sequence; it ends with the same frame."""
        self._pending.pooled = pooled

    def _append(self, token_id: int, logprobs: TokenLogprobs | None, *, is_visible: bool) -> None:
        self.num_generated_tokens += 1
        self._pending.token_ids.append(token_id)
        if logprobs is not None:
            self._pending.logprobs.append(logprobs)
            self._pending.text_offsets.append(self._text_length)
        if is_visible:
            self._show(self._detokenizer.decode(token_id))

    def _show(self, text: str) -> None:
        self._text_length += len(text)
        if self._stop_strings is None or self.num_generated_tokens <= self._min_tokens:
            self._pending.text += text
            return
        certain, stop_string = self._stop_strings.push(text)
        self._pending.text += certain
        if stop_string is not None:
            self.finish_reason = self._pending.finish_reason = FinishReason.STOP.value
            self._pending.stop_reason = stop_string

    def _finish(self, finished: Finished) -> None:
        self._show(self._detokenizer.flush())
        if self.finish_reason is not None:
            return
        if self._stop_strings is not None:
            self._pending.text += self._stop_strings.flush()
        self.finish_reason = self._pending.finish_reason = finished.reason.value
        self._pending.stop_reason = finished.stop_token_id

    def _take_if_due(self) -> ChoiceOutput | None:
        num_new = self.num_generated_tokens - self._num_reported_tokens
        is_first = num_new > 0 and self._num_reported_tokens == 0
        if self.finish_reason is None and not is_first and num_new < self._options.stream_interval:
            return None
        self._num_reported_tokens = self.num_generated_tokens
        self.is_plain = self._can_be_plain
        output, self._pending = self._pending, ChoiceOutput(index=self.index)
        return output
