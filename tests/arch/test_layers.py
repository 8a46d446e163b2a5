"""The architecture, as tests: imports point one way, heavy libraries stay where they belong, all is described."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "engined"
# `kernels` is a link to the folder beside the package, which rglob does not enter by itself.
MODULES = sorted([*PACKAGE.rglob("*.py"), *(PACKAGE / "kernels").rglob("*.py")])

# Layers from top to bottom: a module may import its own package and those in lines below, never those in its own line.
LAYERS = [
    {"cli", "offline"},
    {"doctor"},
    {"bench"},
    {"supervisor", "frontend", "core", "client"},
    {"executor"},
    {"worker"},
    {"models"},
    {"attention"},
    {"layers"},
    {"kernels"},
    {"scheduler"},
    {"cache", "grammar"},
    {"tokenization"},
    {"catalogue"},
    {"process", "ipc", "batch"},
    {"protocol"},
    {"config"},
    {"checkpoint"},
    {"trace"},
    {"errors", "log", "faults"},
]
RANK = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}

# Who may import a heavy library.
OWNERS = {
    "torch": {"worker", "models", "layers", "attention", "kernels"},
    "triton": {"worker", "models", "layers", "attention", "kernels"},
    "aiohttp": {"frontend", "client"},
    "click": {"cli"},
    "transformers": set(),
}
FORBIDDEN = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec"}


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module(path: Path) -> None:
    package = package_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in FORBIDDEN, f"{name}: no deserialiser that can run code"
        if top in OWNERS:
            assert package in OWNERS[top], f"{package} may not import {top}"
        if top == "engined" and rest and package != "__init__":
            other = rest[0]
            assert other == package or RANK[other] > RANK[package], f"{package} may not import {name}"
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module says what it owns and where it runs"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_are_described(path: Path) -> None:
    """Public classes, and public functions and methods that do not override a described one."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        assert ast.get_docstring(node), f"{node.name} has no docstring"
        if isinstance(node, ast.ClassDef) and not node.bases:
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                    assert ast.get_docstring(member), f"{node.name}.{member.name} has no docstring"


HEAVY = {
    "transformers",
    "torch",
    "gguf",
    "yaml",
    "huggingface_hub",
    "sympy",
    "matplotlib",
    "pandas",
    "scipy",
    "pydantic",
}
"""What takes long to import, or much memory, and that somebody may pull in by mistake."""
NETWORK = {"aiohttp", "asyncio", "requests", "httpx"}
TEXT = {"tokenizers", "llguidance", "jinja2"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("engined.supervisor.run", HEAVY | NETWORK | TEXT | {"numpy", "click"}),
        ("engined.frontend.main", HEAVY | {"numpy", "click"}),
        ("engined.frontend.rendering.grammar_child", HEAVY | NETWORK),
        ("engined.core.main", HEAVY | NETWORK | {"click", "jinja2"}),
        ("engined.executor.multiproc", HEAVY | NETWORK | {"numpy"}),
        # torch itself imports asyncio.
        ("engined.executor.uniproc", (HEAVY | NETWORK) - {"torch", "asyncio"} | {"click", "jinja2"}),
        ("engined.worker.main", (HEAVY | NETWORK | TEXT) - {"torch", "asyncio"} | {"click"}),
        ("engined.cli.doctor", HEAVY | {"numpy"}),
    ],
)
def test_a_process_loads_only_what_it_needs(module: str, absent: set[str]) -> None:
    """The core loads torch through the executor that it was told to use, so its own modules do not."""
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not absent & set(loaded)
