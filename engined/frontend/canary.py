"""The first request to an engine: one token, which shows that it works before anybody is let in. Frontend process."""

import time
import uuid

from engined.checkpoint.model_info import ModelInfo
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams


def canary(info: ModelInfo) -> EngineCoreRequest:
    """A request that every engine of this model must be able to answer."""
    token_id = info.eos_token_ids[0] if info.eos_token_ids else 0
    return EngineCoreRequest(
        request_id=f"canary-{uuid.uuid4().hex}",
        prompt_token_ids=[token_id],
        sampling=SamplingParams(max_tokens=0 if info.runner == "pooling" else 1),
        arrival_time=time.monotonic(),
        pooling=PoolingParams() if info.runner == "pooling" else None,
    )
