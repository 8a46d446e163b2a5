"""The ranges of generation settings and token ids, checked twice: by the frontend for the client's 4xx, and by the
core, so that nothing which slipped through can harm a neighbour. Both raise RequestError that names the field."""

import math
from collections.abc import Iterable

from engined.checkpoint.model_info import ModelInfo
from engined.errors import ContextLengthError, RequestError
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.pooling import PoolingParams
from engined.protocol.reasoning import ReasoningSpec
from engined.protocol.sampling import SamplingParams

MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_STOP_TOKEN_IDS = 1024
MIN_TENANT_WEIGHT = 0.01


def validate_request(request: EngineCoreRequest, info: ModelInfo, max_model_len: int) -> None:
    """Check one request against the model. Raises RequestError."""
    vocab_size = info.vocab_size
    if (request.pooling is not None) != (info.runner == "pooling"):
        raise RequestError(
            f"the model runs as --runner {info.runner}, and the request asks for the other", param="model"
        )
    if request.pooling is not None and (request.grammar is not None or request.reasoning is not None):
        raise RequestError("a pooling model generates nothing that could be constrained", param="structured_outputs")
    if request.reasoning is not None:
        validate_reasoning(request.reasoning)
    num_prompt = len(request.prompt_token_ids)
    if num_prompt == 0:
        raise RequestError("the prompt is empty: send at least one token", param="prompt")
    _check_ids("prompt", request.prompt_token_ids, vocab_size)
    validate_sampling(request.sampling, vocab_size)
    _check_range("tenant_weight", request.tenant_weight, MIN_TENANT_WEIGHT, 1 / MIN_TENANT_WEIGHT)
    if request.pooling is not None:
        validate_pooling(request.pooling, num_prompt, info)
    # One position more than the prompt is needed to generate anything at all.
    if num_prompt + min(request.sampling.max_tokens, 1) > max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt} tokens, but at most {max_model_len} tokens of prompt and output fit",
            "prompt",
        )


def validate_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Check the ranges of all settings. Raises RequestError for the first one that is out."""
    _check_range("temperature", sampling.temperature, 0.0, 2.0)
    _check_range("top_p", sampling.top_p, 0.0, 1.0, exclude_low=True)
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    _check_range("top_k", sampling.top_k, 0, 2**31)
    _check_range("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0, exclude_low=True)
    _check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _check_range("max_tokens", sampling.max_tokens, 0, 2**31)
    _check_range("min_tokens", sampling.min_tokens, 0, 2**31)
    if sampling.min_tokens > sampling.max_tokens:
        raise RequestError(
            f"min_tokens ({sampling.min_tokens}) is larger than max_tokens ({sampling.max_tokens})",
            param="min_tokens",
        )
    _check_range("seed", sampling.seed, 0, 2**64 - 1)
    _check_lists(sampling, vocab_size)


def validate_reasoning(reasoning: ReasoningSpec) -> None:
    """Check the bound of the reasoning. Raises RequestError."""
    assert reasoning.begin and reasoning.end, "a format of reasoning has tags"
    if reasoning.max_tokens is not None:
        _check_range("thinking_token_budget", reasoning.max_tokens, 0, 2**31)


def validate_pooling(pooling: PoolingParams, num_tokens: int, info: ModelInfo) -> None:
    """Check how a prompt of `num_tokens` is pooled. Raises RequestError for the first setting that is out."""
    if pooling.dimensions is not None:
        _check_range("dimensions", pooling.dimensions, 1, info.hidden_size)
    types = pooling.token_type_ids
    if types is None:
        return
    # RoBERTa has one kind of segment and reads pairs all the same: the worker leaves the segments out.
    num_types = 0 if info.encoder is None else max(info.encoder.type_vocab_size, 2)
    if len(types) != num_tokens or not all(0 <= segment < num_types for segment in types):
        raise RequestError(
            f"token_type_ids must give each of the {num_tokens} tokens a segment below {num_types}",
            param="token_type_ids",
        )


def _check_lists(sampling: SamplingParams, vocab_size: int) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias may hold {MAX_LOGIT_BIAS} entries", param="logit_bias")
    _check_ids("logit_bias", (token_id for token_id, _ in sampling.logit_bias), vocab_size)
    for _, bias in sampling.logit_bias:
        _check_range("logit_bias", bias, -100.0, 100.0)
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty: leave it out or name a token", param="allowed_token_ids")
        _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab_size)
    if len(sampling.bad_words_ids) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words may hold {MAX_BAD_WORDS} sequences", param="bad_words")
    for sequence in sampling.bad_words_ids:
        if not sequence:
            raise RequestError("bad_words holds an empty word", param="bad_words")
        _check_ids("bad_words", sequence, vocab_size)
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(f"stop_token_ids may hold {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None:
            _check_range(name, count, 0, vocab_size)


def _check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param}: token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})", param=param
            )


def _check_range(param: str, value: float, low: float, high: float, *, exclude_low: bool = False) -> None:
    if math.isfinite(value) and low <= value <= high and not (exclude_low and value == low):
        return
    bounds = f"above {low} and at most {high}" if exclude_low else f"from {low} to {high}"
    raise RequestError(f"{param} must be {bounds}, not {value}", param=param)
