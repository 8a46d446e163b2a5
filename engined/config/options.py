"""The options of `schema.py` as a flat table: names in every source, and how a value is read and checked.

Used by the loader, by the command line (which makes its flags from this table) and by error messages.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from engined.config.schema import Config
from engined.config.units import parse_bytes, parse_tokens
from engined.errors import ConfigError

ValueType = Literal["text", "integer", "number", "switch", "choice", "list", "bytes", "tokens", "json"]

ENVIRONMENT_PREFIX = "ENGINED_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, seen from outside."""

    name: str
    """Field name, which is the TOML key too."""
    table: str
    """Table of the TOML file, and field of `Config`."""
    type: ValueType
    help: str
    default: Any
    short_name: str | None = None
    """Second, shorter flag without its dashes: "tp"."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    @property
    def flag(self) -> str:
        """The long flag: `--max-num-seqs`."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling that switches the option on or sets it."""
        return (self.flag,) if self.short_name is None else (self.flag, f"--{self.short_name}")

    @property
    def environment_name(self) -> str:
        """The environment variable: `ENGINED_MAX_NUM_SEQS`."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    def parse_text(self, text: str) -> Any:
        """Read a value from a flag or the environment. Raises ConfigError with a text that starts at the value."""
        match self.type:
            case "integer":
                return self.check(_parse_integer(text))
            case "number":
                return self.check(_parse_number(text))
            case "switch":
                return _parse_switch(text)
            case "list":
                return self.check([part.strip() for part in text.split(",") if part.strip()])
            case "json":
                return self.check(_parse_json(text))
            case _:
                return self.check(text)

    def check(self, value: Any) -> Any:
        """Check a parsed value (as TOML has it) and bring it to the field's type. Raises ConfigError as above."""
        match self.type:
            case "list":
                value = (value,) if isinstance(value, str) else value
                _require(isinstance(value, list | tuple) and all(isinstance(v, str) for v in value), value, "text")
                return tuple(value)
            case "bytes" | "tokens" if isinstance(value, str):
                value = parse_bytes(value) if self.type == "bytes" else parse_tokens(value)
            case "bytes" | "tokens" | "integer":
                _require(type(value) is int, value, "a whole number")
            case "number":
                _require(type(value) in (int, float), value, "a number")
                value = float(value)
            case "switch":
                _require(isinstance(value, bool), value, "true or false")
            case "json":
                _require(isinstance(value, dict), value, "a JSON object")
            case "choice":
                _require(value in self.choices, value, f"one of {', '.join(self.choices)}")
            case "text":
                _require(isinstance(value, str) and value != "", value, "text")
        self._check_range(value)
        return value

    def _check_range(self, value: Any) -> None:
        if self.minimum is not None and not value >= self.minimum:
            raise ConfigError(f"{value} is too small: the least is {self.minimum}")
        if self.maximum is not None and not value <= self.maximum:
            raise ConfigError(f"{value} is too large: the most is {self.maximum}")


def all_options() -> tuple[Option, ...]:
    """Every option, in the order of the schema."""
    return tuple(
        _describe(table.name, field, hints[field.name])
        for table in dataclasses.fields(Config)
        for hints in (typing.get_type_hints(table.type),)
        for field in dataclasses.fields(_table_type(table))
    )


def table_titles() -> dict[str, str]:
    """TOML tables and what each is about, in the order of the schema."""
    return {table.name: (_table_type(table).__doc__ or "").strip().rstrip(".") for table in dataclasses.fields(Config)}


def suggest(name: str, valid_names: Iterable[str]) -> str:
    """A sentence that names the nearest valid name; empty if none is near."""
    nearest = difflib.get_close_matches(name, list(valid_names), n=1)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def _table_type(table: "dataclasses.Field[Any]") -> type:
    assert isinstance(table.type, type)
    return table.type


def _describe(table: str, field: "dataclasses.Field[Any]", hint: Any) -> Option:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    is_choice = typing.get_origin(hint) is Literal
    return Option(
        name=field.name,
        table=table,
        type=_value_type(hint, field.metadata["kind"]),
        help=field.metadata["help"],
        default=field.default,
        short_name=field.metadata["short"],
        metavar=field.metadata["metavar"],
        choices=typing.get_args(hint) if is_choice else (),
        minimum=field.metadata["minimum"],
        maximum=field.metadata["maximum"],
    )


def _value_type(hint: Any, kind: str) -> ValueType:
    if kind in ("bytes", "tokens", "json"):
        return typing.cast(ValueType, kind)
    if typing.get_origin(hint) is Literal:
        return "choice"
    if typing.get_origin(hint) is tuple:
        return "list"
    by_type: dict[Any, ValueType] = {str: "text", bool: "switch", int: "integer", float: "number"}
    return by_type[hint]


def _require(condition: bool, value: Any, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{value!r} is not {expected}")


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a whole number") from None


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None


def _parse_switch(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ConfigError(f"{text!r} is not true or false")
    return values[text.lower()]


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{text!r} is not JSON: {error}") from None
