"""The reference that the exactness tests share; the servers are in tests/conftest.py."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.end_to_end import reference


@pytest.fixture(scope="session")
def reference_model(default_gguf: Path) -> PreTrainedModel:
    """The default model in transformers, fp32."""
    return reference.load(default_gguf)
