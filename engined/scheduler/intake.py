"""Second half of a step: what its results mean for each request. Owned by the scheduler."""

import logging
from itertools import islice

from engined import faults
from engined.cache.sequence_cache import SequenceCache
from engined.errors import GrammarError
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import EngineCoreOutputs, Finished, FinishReason, TokenLogprobs
from engined.protocol.plan import ModelRunnerOutput
from engined.scheduler.output_buffer import OutputBuffer
from engined.scheduler.request import Request, RequestStatus
from engined.scheduler.roster import Roster
from engined.scheduler.step import Step
from engined.scheduler.stop import check_constrained_stop, check_stop

logger = logging.getLogger(__name__)


class ResultIntake:
    """Appends what was sampled, ends what is complete, and publishes the blocks that are full.

    A request whose result is one more token, and nothing more, takes the short way; see Request.attention_at.
    """

    def __init__(self, roster: Roster, cache: SequenceCache, outputs: OutputBuffer) -> None:
        self._roster = roster
        self._cache = cache
        self._outputs = outputs
        self._publish_interval = 4 * cache.block_size
        self.num_forced_tokens = 0

    def take(self, step: Step, result: ModelRunnerOutput) -> None:
        """Take in the result of the last step; what the clients must be told goes to the outputs."""
        self._roster.fail(result.errors)
        num_decoding = len(step.decoding)
        assert result.request_ids[:num_decoding] == list(step.decoding), "the worker answers in another order"
        watches_faults = faults.has_any()
        outputs, client_index = EngineCoreOutputs(), None
        for request, new_token_ids in zip(step.decoding.values(), result.sampled_token_ids, strict=False):
            if (
                len(new_token_ids) != 1
                or new_token_ids[0] in request.stop_token_ids
                or not request.attention_at  # it was aborted while the step ran
                or watches_faults
            ):
                self._try_take_one(request, 1, new_token_ids, result)
                continue
            # 256 of them take 45 us, the other way 150 us.
            request.num_computed_tokens += 1
            request.token_ids += new_token_ids
            if request.client_index != client_index:
                client_index = request.client_index
                outputs = self._outputs.of_client(client_index)
            outputs.request_ids.append(request.request_id)
            outputs.new_token_ids.append(new_token_ids)
        sampled = dict(zip(result.request_ids[num_decoding:], result.sampled_token_ids[num_decoding:], strict=True))
        for request_id, request in step.others.items():
            self._try_take_one(request, step.num_scheduled_tokens[request_id], sampled.get(request_id), result)

    def _try_take_one(
        self, request: Request, num_scheduled_tokens: int, new_token_ids: list[int] | None, result: ModelRunnerOutput
    ) -> None:
        """Take in what the step computed for one request, unless it was aborted, failed or lost its place meanwhile."""
        self._roster.num_changes += 1
        if request.status is not RequestStatus.RUNNING:
            return
        try:
            self._take_one(request, num_scheduled_tokens, new_token_ids, result)
        except Exception as error:  # the boundary of this request: its neighbours are in the same step
            logger.exception("request %s: its result cannot be taken in", request.request_id)
            self._roster.fail({request.request_id: f"internal error: {error}"})

    def _take_one(
        self, request: Request, num_scheduled_tokens: int, new_token_ids: list[int] | None, result: ModelRunnerOutput
    ) -> None:
        faults.point("request.update")
        request.num_computed_tokens += num_scheduled_tokens
        self._cache.publish_blocks(request, request.num_computed_tokens)
        if result.prompt_logprobs and request.request_id in result.prompt_logprobs:
            self._report_prompt_logprobs(request, num_scheduled_tokens, result.prompt_logprobs[request.request_id])
        if request.num_computed_tokens < len(request.token_ids):
            return
        if request.pooling is not None:
            self._take_pooled(request, result)
        else:
            self._append_tokens(request, new_token_ids, result)
        if request.is_plain and request.status is RequestStatus.RUNNING:
            request.attention_at = request.max_num_tokens - 1

    def publish_output(self, step: Step) -> None:
        """Put full blocks of output into the prefix cache; called while the model computes.

        Output is shared once its request has ended, so it may be published late. Four blocks at a time halve the cost
        of hashing, and taking turns spreads it, even if all requests fill their blocks in the same step.
        """
        for request in islice(
            step.decoding.values(), step.step_id % self._publish_interval, None, self._publish_interval
        ):
            if request.status is RequestStatus.RUNNING:
                self._cache.publish_blocks(request, request.num_computed_tokens)

    def _append_tokens(self, request: Request, new_token_ids: list[int] | None, result: ModelRunnerOutput) -> None:
        """Append what was sampled after the last token, up to the one that ends the sequence."""
        num_tokens_before = len(request.token_ids)
        if num_tokens_before >= request.max_num_tokens:  # max_tokens is 0: only the prompt was of interest
            ended = Finished(reason=FinishReason.LENGTH, num_preemptions=request.num_preemptions)
            self._roster.finish(request, ended)
            return
        if not new_token_ids:
            self._roster.fail({request.request_id: "the worker sampled no token for this request"})
            return
        if request.matcher is not None:
            self._append_constrained(request, request.matcher, new_token_ids, result)
            return
        finished: Finished | None = None
        for token_id in new_token_ids:
            request.token_ids.append(token_id)
            finished = check_stop(request)
            if finished is not None:
                break
        logprobs = result.logprobs.get(request.request_id) if result.logprobs else None
        if finished is None:
            self._outputs.add_tokens(request, new_token_ids, logprobs)
        else:
            num_appended = len(request.token_ids) - num_tokens_before
            self._outputs.add_tokens(request, new_token_ids[:num_appended], logprobs and logprobs[:num_appended])
            self._roster.finish(request, finished)

    def _append_constrained(
        self, request: Request, matcher: GrammarMatcher, sampled_token_ids: list[int], result: ModelRunnerOutput
    ) -> None:
        """Append what was sampled, and what its grammar forces after it (jump-forward)."""
        num_tokens_before = len(request.token_ids)
        forced: list[int] = []
        try:
            finished = _extend(request, matcher, sampled_token_ids)
            if finished is None and request.jumps_forward:
                num_sampled = len(request.token_ids)
                finished = _extend(request, matcher, matcher.forced_tokens())
                forced = request.token_ids[num_sampled:]
        except GrammarError as error:
            self._roster.fail({request.request_id: str(error)})
            return
        self.num_forced_tokens += len(forced)
        new_token_ids = request.token_ids[num_tokens_before:]
        logprobs = result.logprobs.get(request.request_id) if result.logprobs else None
        self._outputs.add_tokens(request, new_token_ids, logprobs and logprobs[: len(new_token_ids)])
        if finished is not None:
            self._roster.finish(request, finished)
        elif forced:
            self._roster.note_forced_tokens(request, forced)

    def _take_pooled(self, request: Request, result: ModelRunnerOutput) -> None:
        """End a pooled request with its result."""
        vector = result.pooled.get(request.request_id)
        if vector is None:
            self._roster.fail({request.request_id: "the worker gave no result for this request"})
            return
        self._outputs.add_pooled(request, vector)
        self._roster.finish(request, Finished(reason=FinishReason.STOP, num_preemptions=request.num_preemptions))

    def _report_prompt_logprobs(
        self, request: Request, num_scheduled_tokens: int, entries: list[TokenLogprobs]
    ) -> None:
        """Pass on the entries of the chunk just computed, less those that were sent before a preemption.

        A plan that computes tokens i to j - 1 yields the entries of positions i + 1 to j, as far as they are in the
        prompt.
        """
        num_computed_before = request.num_computed_tokens - num_scheduled_tokens
        new_entries = entries[max(0, request.num_prompt_logprobs_sent - num_computed_before) :]
        if new_entries:
            request.num_prompt_logprobs_sent += len(new_entries)
            self._outputs.add_prompt_logprobs(request, new_entries)


def _extend(request: Request, matcher: GrammarMatcher, token_ids: list[int]) -> Finished | None:
    """Append tokens up to the one that ends the sequence. Raises GrammarError if the grammar forbids one."""
    for token_id in token_ids:
        request.token_ids.append(token_id)
        finished = check_constrained_stop(request, matcher)
        if finished is not None:
            return finished
    return None
