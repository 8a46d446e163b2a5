"""API keys as an operator writes them: one a line, with a name, a digest, scopes and limits.

Read by the supervisor, so that a bad file stops the start, and by each frontend, again at every SIGHUP. The command
`engined keys` makes the lines.

    # name   key, or sha256: and its digest   settings
    alice    sha256:5e88...                   requests_per_minute=60 max_concurrency=4
    grafana  sha256:03ac...                   scopes=metrics
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engined.config.options import suggest
from engined.config.private_file import read_private_file
from engined.config.schema import ServerConfig
from engined.errors import ConfigError

Scope = Literal["inference", "metrics", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
DEFAULT_SCOPES: frozenset[Scope] = frozenset(("inference",))

_FLAG = "--api-keys-file"
_DIGEST_PREFIX = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COUNT = re.compile(r"[1-9][0-9]{0,9}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What the holder of one key may use; None: no limit of its own."""

    max_concurrency: int | None = None
    """Requests at once."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""
    weight: float = 1.0
    """Share of the engine against other keys when there is not enough for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key that is accepted."""

    name: str
    digest: bytes
    """SHA-256 of the key: 32 bytes."""
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    limits: KeyLimits = KeyLimits()


def digest_key(key: str) -> bytes:
    """What is kept of a key: its SHA-256."""
    # Headers come decoded with surrogates for bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()


def load_api_keys(server: ServerConfig) -> tuple[ApiKey, ...] | None:
    """All keys that the options name, those of the file read anew; None if the server asks for none.

    A file without keys is not the same: then nobody has one that fits. Keys given as flags have all scopes.
    Raises ConfigError that names the file and the line.
    """
    if not server.api_key and server.api_keys_file is None:
        return None
    given = [
        (f"--api-key, number {number}", ApiKey(name=f"key-{number}", digest=digest_key(key), scopes=ALL_SCOPES))
        for number, key in enumerate(server.api_key, start=1)
    ]
    if server.api_keys_file is not None:
        path = Path(server.api_keys_file)
        given += parse_api_keys(read_private_file(path, _FLAG), str(path))
    _check_unique(given)
    return tuple(key for _, key in given)


def parse_api_keys(text: str, source: str) -> list[tuple[str, ApiKey]]:
    """The keys of a file's text, each with its place ("/etc/engined/api-keys, line 3"). Raises ConfigError."""
    keys = [(place, _parse_line(words, place)) for place, words in _lines(text, source)]
    _check_unique(keys)
    return keys


def format_line(name: str, digest: bytes, scopes: Sequence[Scope]) -> str:
    """The line of a key, without its end. Raises ConfigError if the name does not fit."""
    words = (name, f"{_DIGEST_PREFIX}{digest.hex()}", f"scopes={','.join(scopes)}")
    _parse_line(words, repr(name))
    return " ".join(words)


def _lines(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield f"{source}, line {number}", words


def _parse_line(words: Sequence[str], place: str) -> ApiKey:
    if len(words) < 2:
        raise ConfigError(f"{_FLAG}: {place}: write the key's name, then the key or {_DIGEST_PREFIX} and its digest")
    name, credential, *settings = words
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{_FLAG}: {place}: a name has up to 64 letters, digits, dots, dashes and underscores")
    scopes, limits = _parse_settings(settings, place)
    return ApiKey(name=name, digest=_parse_credential(credential, place), scopes=scopes, limits=limits)


def _parse_credential(text: str, place: str) -> bytes:
    if not text.startswith(_DIGEST_PREFIX):
        return digest_key(text)
    digest = text.removeprefix(_DIGEST_PREFIX)
    if _DIGEST.fullmatch(digest) is None:
        raise ConfigError(f"{_FLAG}: {place}: after {_DIGEST_PREFIX} come the 64 hexadecimal digits of a digest")
    return bytes.fromhex(digest)


def _parse_settings(settings: Sequence[str], place: str) -> tuple[frozenset[Scope], KeyLimits]:
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in _PARSERS:
            # The word itself is not repeated: it may be a part of a key.
            hint = suggest(name, _PARSERS) or f" There are {', '.join(_PARSERS)}."
            raise ConfigError(f"{_FLAG}: {place}: a setting is unknown; each is NAME=VALUE.{hint}")
        if name in values:
            raise ConfigError(f"{_FLAG}: {place}: {name} is there twice")
        try:
            values[name] = _PARSERS[name](text)
        except ValueError as error:
            raise ConfigError(f"{_FLAG}: {place}: {name}: {error}") from None
    scopes: frozenset[Scope] = values.pop("scopes", DEFAULT_SCOPES)
    return scopes, KeyLimits(**values)


def _parse_scopes(text: str) -> frozenset[Scope]:
    names = text.split(",")
    if not ALL_SCOPES.issuperset(names):
        raise ValueError(f"give some of {','.join(get_args(Scope))}, with commas between them")
    return frozenset(scope for scope in ALL_SCOPES if scope in names)


def _parse_count(text: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise ValueError("give a whole number of at least 1")
    return int(text)


def _parse_weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0.01 <= weight <= 100:
        raise ValueError("give a number from 0.01 to 100")
    return weight


_PARSERS: dict[str, Callable[[str], Any]] = {
    "scopes": _parse_scopes,
    "max_concurrency": _parse_count,
    "requests_per_minute": _parse_count,
    "tokens_per_minute": _parse_count,
    "weight": _parse_weight,
}


def _check_unique(keys: Sequence[tuple[str, ApiKey]]) -> None:
    """Refuse two keys of one name, and one key under two names: which scopes would it have?"""
    names: dict[str, str] = {}
    digests: dict[bytes, str] = {}
    for place, key in keys:
        if key.name in names:
            raise ConfigError(f"{_FLAG}: {place}: the name {key.name} is taken by {names[key.name]}")
        if key.digest in digests:
            raise ConfigError(f"{_FLAG}: {place}: {key.name} is the same key as {digests[key.digest]}")
        names[key.name] = place
        digests[key.digest] = place
