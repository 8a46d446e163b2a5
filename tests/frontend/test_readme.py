"""The README's tables are those that the code makes."""

from engined.checkpoint.model_info import ModelInfo
from engined.frontend.api.field_table import FIELD_TABLE
from tests.readme_tables import README, field_table, read_openapi, with_tables


async def test_the_tables_are_up_to_date(model_info: ModelInfo) -> None:
    text = README.read_text()
    document = await read_openapi(model_info)
    assert text == with_tables(text, document), "run python -m tests.readme_tables"
    assert all(f"`{path}`" in text for path in document["paths"])


def test_every_field_is_in_the_table() -> None:
    table = field_table()
    assert [entry.name for entry in FIELD_TABLE if f"`{entry.name}`" not in table] == []
