"""LangChain's standard suite for embeddings, with its own OpenAI client against a real server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.embeddings import Embeddings
from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests

from tests.end_to_end.server import Server


class TestOpenAIEmbeddings(EmbeddingsIntegrationTests):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    async def connect(self, minilm_server: Server, minilm: Path) -> AsyncIterator[None]:
        """Points the suite to the server. LangChain's own HTTP clients would never be closed."""
        self._model = minilm.name
        self._base_url = f"{minilm_server.url}/v1"
        with httpx.Client(timeout=300) as self._http_client:
            async with httpx.AsyncClient(timeout=300) as self._http_async_client:
                yield

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        # The client would split texts by the tokens of OpenAI's own models, whose vocabulary it would have to download.
        return {
            "model": self._model,
            "base_url": self._base_url,
            "api_key": "none",
            "http_client": self._http_client,
            "http_async_client": self._http_async_client,
            "check_embedding_ctx_length": False,
        }
