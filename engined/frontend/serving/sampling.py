"""From the fields of a request to `SamplingParams`. Frontend process; used by both generation endpoints.

Each setting comes from the request, else from the operator's --override-generation-config, else from the model's
generation_config, else from our own default; key by key.
"""

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from engined.checkpoint.model_info import ModelInfo
from engined.errors import ConfigError, RequestError
from engined.frontend.api.fields import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STREAM_INTERVAL,
    GenerationFields,
)
from engined.frontend.api.parser import unsupported
from engined.frontend.output.request_state import OutputOptions
from engined.protocol.sampling import SamplingParams
from engined.protocol.validation import MAX_LOGIT_BIAS, validate_sampling
from engined.tokenization.tokenizer import ModelTokenizer

GREEDY_BELOW = 1e-5
T = TypeVar("T")
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """What applies where a request is silent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsWanted:
    """Alternatives to report, for generated tokens and for the prompt; None is off."""

    generated: int | None = None
    prompt: int | None = None


def resolve_defaults(model_info: ModelInfo, override: Mapping[str, Any] | None) -> GenerationDefaults:
    """Merge the model's generation_config and --override-generation-config. Raises ConfigError for the latter."""
    known = [field.name for field in fields(GenerationDefaults)]
    settings: dict[str, Any] = {}
    for name, value in (model_info.generation_defaults or {}).items():
        if name in known and _is_number(value):
            settings[name] = value
    for name, value in (override or {}).items():
        if name not in known:
            raise ConfigError(f"--override-generation-config: {name} is not one of {', '.join(known)}; leave it out")
        if not _is_number(value):
            raise ConfigError(f"--override-generation-config: {name} must be a number, not {value!r}")
        settings[name] = value
    for name in ("top_k", "max_new_tokens"):
        if name in settings:
            settings[name] = int(settings[name])
    if settings.get("top_k", 0) < 0:
        settings["top_k"] = 0
    defaults = GenerationDefaults(**settings)
    _check_defaults(defaults, model_info.vocab_size)
    return defaults


def _check_defaults(defaults: GenerationDefaults, vocab_size: int) -> None:
    settings = {name: value for name, value in asdict(defaults).items() if name != "max_new_tokens"}
    try:
        validate_sampling(SamplingParams(max_tokens=defaults.max_new_tokens or 0, **settings), vocab_size)
    except RequestError as error:
        raise ConfigError(f"generation_config: {error}; set it right with --override-generation-config") from error


class SamplingResolver:
    """Turns requests into sampling settings for one model."""

    def __init__(
        self, model_info: ModelInfo, defaults: GenerationDefaults, tokenizer: ModelTokenizer, seed: int | None
    ) -> None:
        """With `seed` the seeds of unseeded requests are the same after every start."""
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._vocab_size = model_info.vocab_size
        self._eos_token_ids = model_info.eos_token_ids
        self._seeds = random.Random(seed)

    def resolve(
        self,
        request: GenerationFields,
        max_tokens: int | None,
        room: int,
        logprobs: LogprobsWanted,
        default_max_tokens: int | None = None,
    ) -> SamplingParams:
        """Settings of the first choice. Raises RequestError naming the field.

        `max_tokens` is what was asked for, `room` what fits behind the prompt. A silent request gets what the
        generation_config says, else `default_max_tokens`, else all the room.
        """
        defaults = self._defaults
        min_tokens = _default(request.min_tokens, 0)
        if max_tokens is not None and min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens ({min_tokens}) is larger than max_tokens ({max_tokens})", param="min_tokens"
            )
        silent_limit = _default(defaults.max_new_tokens, _default(default_max_tokens, room))
        limit = _default(max_tokens, silent_limit)
        sampling = SamplingParams(
            max_tokens=min(limit, room),
            min_tokens=min_tokens,
            temperature=_default(request.temperature, defaults.temperature),
            top_k=_resolve_top_k(_default(request.top_k, defaults.top_k)),
            top_p=_default(request.top_p, defaults.top_p),
            min_p=_default(request.min_p, defaults.min_p),
            repetition_penalty=_default(request.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=_default(request.presence_penalty, 0.0),
            frequency_penalty=_default(request.frequency_penalty, 0.0),
            logit_bias=_parse_logit_bias(request.logit_bias),
            allowed_token_ids=_optional_tuple(request.allowed_token_ids),
            bad_words_ids=self._tokenize_bad_words(request.bad_words),
            stop_token_ids=tuple(request.stop_token_ids or ()),
            eos_token_ids=self._eos_token_ids,
            ignore_eos=bool(request.ignore_eos),
            seed=self._resolve_seed(request.seed),
            logprobs=logprobs.generated,
            prompt_logprobs=logprobs.prompt,
        )
        validate_sampling(sampling, self._vocab_size)
        return _normalise_greedy(sampling)

    def _resolve_seed(self, seed: int | None) -> int:
        if seed is None or seed == -1:
            return self._seeds.getrandbits(63)
        if not -(2**63) <= seed < 2**63:
            raise RequestError("seed must be a 64-bit integer", param="seed")
        return seed % 2**64

    def _tokenize_bad_words(self, bad_words: list[str] | None) -> tuple[tuple[int, ...], ...]:
        """Each word as it stands at the start of a text and inside one, which are different tokens."""
        if not bad_words:
            return ()
        if len(bad_words) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words may hold {MAX_BAD_WORDS} words", param="bad_words")
        sequences: dict[tuple[int, ...], None] = {}
        for word in bad_words:
            if not word.strip() or len(word) > MAX_BAD_WORD_LENGTH:
                raise RequestError(
                    f"bad_words: a word must have 1 to {MAX_BAD_WORD_LENGTH} characters", param="bad_words"
                )
            for text in (word.lstrip(), " " + word.lstrip()):
                sequences[tuple(self._tokenizer.encode(text))] = None
        return tuple(sequences)


def choice_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """The settings of choice `index`: the same, with a seed of its own."""
    return sampling if index == 0 else replace(sampling, seed=(sampling.seed + index) % 2**64)


def resolve_num_choices(request: GenerationFields) -> int:
    """`n`. Raises RequestError."""
    n = _default(request.n, 1)
    if not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n must be from 1 to {MAX_CHOICES}, not {n}", param="n")
    if request.best_of is not None and request.best_of != n:
        raise unsupported("best_of", "use n and choose among the answers; only a value equal to n is taken")
    return n


def resolve_output_options(request: GenerationFields, stream_interval: int) -> OutputOptions:
    """What concerns the text only; `stream_interval` is the server's. Raises RequestError."""
    interval = _default(request.stream_interval, stream_interval)
    if not 1 <= interval <= MAX_STREAM_INTERVAL:
        raise RequestError(f"stream_interval must be from 1 to {MAX_STREAM_INTERVAL}", param="stream_interval")
    return OutputOptions(
        stop=_parse_stop(request.stop),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        stream_interval=interval if request.stream else 1,
    )


def _parse_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOP_STRINGS:
        raise RequestError(f"stop may hold {MAX_STOP_STRINGS} strings", param="stop")
    if any(not 1 <= len(text) <= MAX_STOP_STRING_LENGTH for text in stops):
        raise RequestError(f"stop: a string must have 1 to {MAX_STOP_STRING_LENGTH} characters", param="stop")
    return tuple(stops)


def _parse_logit_bias(logit_bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    pairs = []
    # One more than allowed is enough to be refused where all limits are checked.
    for token_id, bias in itertools.islice((logit_bias or {}).items(), MAX_LOGIT_BIAS + 1):
        if _TOKEN_ID.fullmatch(token_id) is None:
            raise RequestError("logit_bias: the keys must be token ids", param="logit_bias")
        pairs.append((int(token_id), bias))
    return tuple(pairs)


def _resolve_top_k(top_k: int) -> int:
    return 0 if top_k == -1 else top_k


def _normalise_greedy(sampling: SamplingParams) -> SamplingParams:
    """A temperature that is practically 0 is 0, and then nothing else narrows the choice."""
    if sampling.temperature >= GREEDY_BELOW:
        return sampling
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def _optional_tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _default(value: T | None, default: T) -> T:
    return default if value is None else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
