"""R27: nothing waits by the wall clock, which may be set while it waits."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "engined"
MAY_TELL_THE_DATE = {
    "bench/provenance.py": "when a benchmark ran",
    "frontend/batches/execution.py": "a batch expires at a date, which outlives the daemon",
    "frontend/batches/file_store.py": "created_at",
    "frontend/batches/service.py": "created_at, expires_at",
    "frontend/rendering/template_environment.py": "strftime_now of chat templates",
    "frontend/serving/build.py": "created",
    "frontend/serving/chat.py": "created",
    "frontend/serving/completions.py": "created",
    "frontend/serving/pooling/embeddings.py": "created",
    "frontend/serving/pooling/score.py": "created",
    "frontend/serving/responses/formatter.py": "completed_at",
    "supervisor/evidence.py": "the name of a file",
}
"""By module, what it needs the date for."""
WALL_CLOCK = {("time", "time"), ("time", "time_ns"), ("time", "strftime"), ("datetime", "now"), ("datetime", "utcnow")}


def reads_wall_clock(path: Path) -> bool:
    """Whether a module asks for the date."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_dotted = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_dotted and (node.value.id, node.attr) in WALL_CLOCK:
            return True
    return False


def test_only_dates_that_are_shown_come_from_the_wall_clock() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if reads_wall_clock(path)}
    # Logging takes its stamps from the standard library.
    assert {name for name in found if not name.startswith("log/")} <= set(MAY_TELL_THE_DATE)
