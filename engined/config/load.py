"""Builds the `Config` of a daemon from flags, environment and a TOML file, and remembers where each value came from.

A flag wins over the environment, the environment over the file, the file over the default.
Called by the command line only; the other processes get the finished `Config`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engined import faults
from engined.config.options import ENVIRONMENT_PREFIX, Option, all_options, suggest
from engined.config.schema import Config
from engined.config.toml_file import read_toml_options
from engined.errors import ConfigError

CONFIG_FILE_VARIABLE = "ENGINED_CONFIG"
_NOT_OPTIONS = (CONFIG_FILE_VARIABLE, faults.VARIABLE)
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""Set by systemd."""

RawValue = str | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration and the origin of each option."""

    config: Config
    sources: Mapping[str, str]
    """By option name: "flag --port", "environment ENGINED_PORT", "file laptop.toml, line 4", "systemd credential
    api-keys" or "default"."""

    def is_default(self, name: str) -> bool:
        """Whether nobody set this option."""
        return self.sources[name] == "default"


def load_config(flags: Mapping[str, RawValue], environ: Mapping[str, str], toml_path: Path | None) -> LoadedConfig:
    """Merge all sources.

    `flags` holds what the command line gave, by option name and not yet parsed. Without `toml_path` the file is the
    one that ENGINED_CONFIG names, if any. Raises ConfigError for an unknown name or a value that does not fit.
    """
    options = {option.name: option for option in all_options()}
    if toml_path is None and environ.get(CONFIG_FILE_VARIABLE):
        toml_path = Path(environ[CONFIG_FILE_VARIABLE])
    values: dict[str, Any] = {name: option.default for name, option in options.items()}
    sources = dict.fromkeys(options, "default")
    if toml_path is not None:
        for name, (value, source) in read_toml_options(toml_path, options).items():
            values[name], sources[name] = value, source
    if (credential := _api_keys_credential(environ)) is not None and values["api_keys_file"] is None:
        values["api_keys_file"], sources["api_keys_file"] = str(credential), "systemd credential api-keys"
    for name, text in _environment_options(environ, options).items():
        sources[name] = f"environment {options[name].environment_name}"
        values[name] = _parse(options[name], text, sources[name])
    for name, raw in flags.items():
        sources[name] = f"flag {options[name].flag}"
        values[name] = _parse(options[name], raw, sources[name])
    return LoadedConfig(config=_build(options, values), sources=sources)


def _api_keys_credential(environ: Mapping[str, str]) -> Path | None:
    """The keys file that systemd hands to this service (LoadCredential=api-keys:...), if it does."""
    folder = environ.get(CREDENTIALS_VARIABLE)
    path = Path(folder, "api-keys") if folder else None
    return path if path is not None and path.exists() else None


def is_credential(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether a file is a copy that systemd makes when a service starts, and never again."""
    folder = environ.get(CREDENTIALS_VARIABLE)
    return folder is not None and path.absolute().is_relative_to(folder)


def _environment_options(environ: Mapping[str, str], options: Mapping[str, Option]) -> dict[str, str]:
    """Variables of ours, by option name. An empty one counts as unset."""
    by_variable = {option.environment_name: name for name, option in options.items()}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_OPTIONS or not text:
            continue
        if variable not in by_variable:
            raise ConfigError(
                f"environment variable {variable} is not an option of engined."
                + suggest(variable, [*by_variable, CONFIG_FILE_VARIABLE])
            )
        found[by_variable[variable]] = text
    return found


def _parse(option: Option, raw: RawValue, source: str) -> Any:
    try:
        return option.parse_text(raw) if isinstance(raw, str) else option.check(raw)
    except ConfigError as error:
        raise ConfigError(f"{option.flag} ({source}): {error}") from None


def _build(options: Mapping[str, Option], values: Mapping[str, Any]) -> Config:
    by_table: dict[str, dict[str, Any]] = {table.name: {} for table in dataclasses.fields(Config)}
    for name, option in options.items():
        by_table[option.table][name] = values[name]
    return dataclasses.replace(
        Config(), **{name: dataclasses.replace(getattr(Config(), name), **fields) for name, fields in by_table.items()}
    )
