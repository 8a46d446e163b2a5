"""The configuration of an offline `LLM`: the options of `engined serve` as keyword arguments. Caller's process."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engined.config.load import load_config
from engined.config.options import Option, all_options, suggest
from engined.config.schema import Config, ServerConfig
from engined.errors import ConfigError

_OF_BOTH = frozenset({"max_logprobs", "log_level", "log_format"})
"""Options of the server table that also concern an engine without a server."""


def offline_config(model: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Config:
    """Check `options` as flags are checked; what they leave open comes from the environment, as for `engined serve`.

    Without a log level the engine's log shows warnings and errors only. Raises ConfigError naming the option.
    """
    known = {option.name: option for option in all_options()}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in known:
            raise ConfigError(f"LLM has no option {name}.{suggest(name, known)}")
        if _is_of_the_server(known[name]):
            raise ConfigError(f"{name} is an option of the HTTP server, and LLM starts none: leave it out")
    if model is not None:
        given["model"] = model
    for name in ("model", "chat_template"):
        if isinstance(given.get(name), os.PathLike):
            given[name] = os.fspath(given[name])
    loaded = load_config(given, os.environ, None)
    server = loaded.config.server
    scheduler = loaded.config.scheduler
    if loaded.is_default("max_step_ms"):
        scheduler = replace(scheduler, max_step_ms=0.0)  # nobody watches a stream
    log_level = "warning" if loaded.is_default("log_level") else server.log_level
    # The environment may be that of a server on this machine, with addresses, keys and certificates.
    server = ServerConfig(max_logprobs=server.max_logprobs, log_level=log_level)
    return replace(loaded.config, scheduler=scheduler, server=server)


def _is_of_the_server(option: Option) -> bool:
    return option.name == "served_model_name" or (option.table == "server" and option.name not in _OF_BOTH)
