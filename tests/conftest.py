"""What tests of several folders share."""

from pathlib import Path

import pytest

from engined.catalogue.resolve import resolve_model
from engined.config.schema import DEFAULT_MODEL


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The real weights of the default model; fetched into the cache when they are not there yet."""
    return Path(resolve_model(DEFAULT_MODEL, None))
