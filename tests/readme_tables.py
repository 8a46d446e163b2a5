"""The tables of the README that the code makes: `python -m tests.readme_tables` writes them, a test compares."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from aiohttp.test_utils import TestClient, TestServer

from engined.catalogue.resolve import resolve_model
from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import DEFAULT_MODEL, Config
from engined.frontend.api.field_table import FIELD_TABLE, GENERATING
from engined.frontend.app import build_frontend

README = Path(__file__).parents[1] / "README.md"
PLACES: dict[tuple[str, ...], str] = {tuple(GENERATING): "both", **{(path,): f"only `{path}`" for path in GENERATING}}
CLASSES = {
    "honoured": "honoured",
    "accepted": "accepted: changes nothing here",
    "refused": "refused: a 400 that names the remedy",
}


async def read_openapi(model_info: ModelInfo) -> dict[str, Any]:
    """/openapi.json of a frontend that has no engine."""
    app = build_frontend(Config(), model_info, "/nowhere.sock").app
    async with TestClient(TestServer(app)) as client, client.get("/openapi.json") as response:
        document: dict[str, Any] = orjson.loads(await response.read())
        return document


def route_table(document: dict[str, Any]) -> str:
    """Every method of every path; paths that do the same share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            rows.setdefault((method.upper(), operation["summary"]), []).append(f"`{path}`")
    return _table(
        ("route", "what it does"),
        ((f"{method} {', '.join(paths)}", summary) for (method, summary), paths in rows.items()),
    )


def field_table() -> str:
    """The fields of the generating routes by class; nested ones under the field that holds them."""
    rows = []
    for support, title in CLASSES.items():
        for endpoints, place in PLACES.items():
            names = [
                f"`{entry.name}`" for entry in FIELD_TABLE if (entry.support, entry.endpoints) == (support, endpoints)
            ]
            if names:
                rows.append((title, place, ", ".join(names)))
    return _table(("class", "where", "fields"), rows)


def with_tables(text: str, document: dict[str, Any]) -> str:
    """The README with its tables made anew."""
    for name, table in (("routes", route_table(document)), ("fields", field_table())):
        begin, _, rest = text.partition(f"<!-- {name}: python -m tests.readme_tables -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"the README has no place for {name}"
        text = f"{begin}<!-- {name}: python -m tests.readme_tables -->\n\n{table}\n{end}{after}"
    return text


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Rewrite the README."""
    model_info = load_model_info(resolve_model(DEFAULT_MODEL, None))
    README.write_text(with_tables(README.read_text(), asyncio.run(read_openapi(model_info))))


if __name__ == "__main__":
    main()
