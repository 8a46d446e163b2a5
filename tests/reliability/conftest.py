"""The tiny model, and daemons with it that are used again as long as they live."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability import tiny_model
from tests.reliability.fleet import Fleet


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that loads in no time."""
    return tiny_model.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="package")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Ready daemons for tests that harm them."""
    with Fleet(model, tmp_path_factory) as fleet:
        yield fleet
