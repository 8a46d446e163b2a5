"""The contract's table names tests that exist, and has a row for each of its items."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (Path(__file__).parent / "contract.md").read_text()
NUM_FAULTS, NUM_INPUTS = 34, 46


def names_in(path: Path) -> set[str]:
    """Functions, classes and other names of a test module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TABLE)
    assert len(named) > 100
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and name not in names_in(ROOT / path))
    ]
    assert not missing


def test_every_item_has_a_row() -> None:
    found: set[str] = set()
    for row in re.findall(r"^\| ([RH]\d[^|]*) \|", TABLE, re.MULTILINE):
        if match := re.fullmatch(r"([RH])(\d+) to [RH](\d+)", row):
            found.update(f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1))
        else:
            found.update(row.split(", "))
    wanted = {f"R{n}" for n in range(1, NUM_FAULTS + 1)} | {f"H{n}" for n in range(1, NUM_INPUTS + 1)}
    assert found == wanted
