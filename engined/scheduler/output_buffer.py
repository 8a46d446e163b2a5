"""What the frontends must be told, collected until the core sends it. Owned by the scheduler."""

from dataclasses import replace

from engined.protocol.engine import EngineCoreOutputs, Finished, SchedulerStats, TokenLogprobs
from engined.scheduler.request import Request


class OutputBuffer:
    """One unsent EngineCoreOutputs for each client that has news. `Started` goes with a request's first news."""

    def __init__(self) -> None:
        self._outputs: dict[int, EngineCoreOutputs] = {}

    def of_client(self, client_index: int) -> EngineCoreOutputs:
        """What a client will be told, to append to."""
        outputs = self._outputs.get(client_index)
        if outputs is None:
            outputs = self._outputs[client_index] = EngineCoreOutputs()
        return outputs

    def add_tokens(self, request: Request, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> None:
        """Report generated tokens; at most once a step for each request."""
        outputs = self._outputs_for(request)
        outputs.request_ids.append(request.request_id)
        outputs.new_token_ids.append(token_ids)
        if logprobs is not None:
            outputs.logprobs[request.request_id] = logprobs

    def add_prompt_logprobs(self, request: Request, entries: list[TokenLogprobs]) -> None:
        """Report the next positions of a prompt; at most once a step for each request."""
        self._outputs_for(request).prompt_logprobs[request.request_id] = entries

    def add_pooled(self, request: Request, vector: list[float]) -> None:
        """Report the result of a pooled request, which ends now."""
        self._outputs_for(request).pooled[request.request_id] = vector

    def add_finished(self, request: Request, finished: Finished) -> None:
        """Report the end of a request."""
        self._outputs_for(request).finished[request.request_id] = finished

    def drop_client(self, client_index: int) -> None:
        """Forget what a client that is gone would have been told."""
        self._outputs.pop(client_index, None)

    def take(self, stats: SchedulerStats, timestamp: float) -> dict[int, EngineCoreOutputs]:
        """Everything since the last call, by client index."""
        taken = {
            client_index: replace(outputs, stats=stats, timestamp=timestamp)
            for client_index, outputs in self._outputs.items()
        }
        self._outputs.clear()
        return taken

    def _outputs_for(self, request: Request) -> EngineCoreOutputs:
        outputs = self.of_client(request.client_index)
        if request.pending_start is not None:
            outputs.started[request.request_id] = request.pending_start
            request.pending_start = None
        return outputs
