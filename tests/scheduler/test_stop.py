"""When a sequence ends, and with which reason."""

from typing import Any

import pytest

from engined.protocol.engine import EngineCoreRequest, FinishReason
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.stop import check_stop

EOS, STOP, OTHER = 1, 2, 3
STOPPED, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([OTHER], {}, None),
        ([EOS], {}, (STOPPED, None)),
        ([STOP], {}, (STOPPED, STOP)),
        ([EOS], {"ignore_eos": True}, None),
        ([STOP], {"ignore_eos": True}, (STOPPED, STOP)),
        ([EOS], {"stop_token_ids": (EOS,)}, (STOPPED, None)),
        ([EOS], {"stop_token_ids": (EOS,), "ignore_eos": True}, (STOPPED, EOS)),
        ([EOS], {"min_tokens": 1}, None),
        ([OTHER, EOS], {"min_tokens": 1}, (STOPPED, None)),
        ([OTHER, STOP], {"min_tokens": 2}, None),
        ([OTHER, OTHER, OTHER], {}, (LENGTH, None)),
        ([OTHER, OTHER, EOS], {}, (STOPPED, None)),
        ([OTHER, OTHER, EOS], {"min_tokens": 3}, (LENGTH, None)),
        ([STOP, OTHER], {"min_tokens": 2}, None),
    ],
)
def test_stop(output: list[int], sampling: dict[str, Any], expected: tuple[FinishReason, int | None] | None) -> None:
    params = SamplingParams(**{"max_tokens": 3, "eos_token_ids": (EOS,), "stop_token_ids": (STOP,), **sampling})
    message = EngineCoreRequest(request_id="r", prompt_token_ids=[EOS, STOP], sampling=params, arrival_time=0.0)
    request = Request(message, 0, None)
    request.num_preemptions = 2
    request.token_ids += output
    finished = check_stop(request)
    if expected is None:
        assert finished is None
    else:
        assert finished is not None and finished.num_preemptions == 2
        assert (finished.reason, finished.stop_token_id) == expected
