"""Reads options from a TOML file, and says in which line each one stands. Used by the loader."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engined.config.options import Option, suggest
from engined.errors import ConfigError

_TABLE_HEADER = re.compile(r"\s*\[\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def read_toml_options(path: Path, options: Mapping[str, Option]) -> dict[str, tuple[Any, str]]:
    """Checked values and their sources ("file laptop.toml, line 4"), by option name.

    Raises ConfigError if the file cannot be read, is not TOML, or holds a table, key or value that is not ours.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--config: cannot read {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config: {path} is not TOML: {error}") from None
    lines = _key_lines(text)
    found: dict[str, tuple[Any, str]] = {}
    for table, content in document.items():
        _check_table(table, content, options, _place(path, lines, table))
        for key, value in content.items():
            place = _place(path, lines, f"{table}.{key}")
            option = _find_option(table, key, options, place)
            try:
                found[key] = (option.check(value), place)
            except ConfigError as error:
                raise ConfigError(f"{key} ({place}): {error}") from None
    return found


def _check_table(table: str, content: Any, options: Mapping[str, Option], place: str) -> None:
    tables = list(dict.fromkeys(option.table for option in options.values()))
    if table in tables and isinstance(content, dict):
        return
    if table in tables:
        raise ConfigError(f"{place}: {table} is a table: write [{table}] and its keys below")
    if table in options:
        raise ConfigError(f"{place}: {table} belongs under [{options[table].table}]")
    kind = "table" if isinstance(content, dict) else "key"
    names = tables if kind == "table" else list(options)
    raise ConfigError(f"{place}: unknown {kind} {table}." + suggest(table, names))


def _find_option(table: str, key: str, options: Mapping[str, Option], place: str) -> Option:
    option = options.get(key)
    if option is not None and option.table == table:
        return option
    if option is not None:
        raise ConfigError(f"{place}: {key} belongs under [{option.table}], not under [{table}]")
    in_table = [name for name, option in options.items() if option.table == table]
    raise ConfigError(f"{place}: unknown key {key} in [{table}]." + (suggest(key, in_table) or suggest(key, options)))


def _place(path: Path, lines: Mapping[str, int], dotted_key: str) -> str:
    line = lines.get(dotted_key)
    return f"file {path}" if line is None else f"file {path}, line {line}"


def _key_lines(text: str) -> dict[str, int]:
    """Line of each dotted key and table, by a plain scan: tomllib keeps no positions.

    A key inside an inline table or a multi-line string is not told apart; then a place without its line is still right.
    """
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE_HEADER.match(line):
            table = re.sub(r"[\"']", "", header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            name = re.sub(r"[\"']", "", key[1])
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines
