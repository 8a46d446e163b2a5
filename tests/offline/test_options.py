"""The keyword arguments of `LLM`, and what `import engined` offers and loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import engined
from engined.errors import ConfigError
from engined.offline.options import offline_config


def test_options_are_those_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINED_BLOCK_SIZE", "32")
    options = {"max_num_seqs": 3, "kv_cache_memory": "1GiB", "seed": None, "enable_prefix_caching": False}
    config = offline_config(Path("model.gguf"), options)
    assert config.model.model == "model.gguf"
    assert (config.scheduler.max_num_seqs, config.cache.kv_cache_memory, config.model.seed) == (3, 1 << 30, None)
    assert (config.cache.block_size, config.cache.enable_prefix_caching) == (32, False)


def test_the_engine_is_quiet_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offline_config(None, {}).server.log_level == "warning"
    assert offline_config(None, {"log_level": "info"}).server.log_level == "info"
    monkeypatch.setenv("ENGINED_LOG_LEVEL", "debug")
    assert offline_config(None, {}).server.log_level == "debug"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 3}, "LLM has no option max_num_seq. Did you mean max_num_seqs?"),
        ({"port": 8000}, "port is an option of the HTTP server, and LLM starts none: leave it out"),
        ({"served_model_name": "x"}, "served_model_name is an option of the HTTP server"),
        ({"max_num_seqs": 0}, "0 is too small"),
        ({"max_num_seqs": 2.5}, "2.5 is not a whole number"),
        ({"dtype": "int3"}, "'int3' is not one of auto, bfloat16, float32"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        offline_config(None, options)
    assert message in str(caught.value)


def test_the_stub_lists_what_the_package_exports() -> None:
    stub = Path(engined.__file__).with_name("__init__.pyi")
    body = ast.parse(stub.read_text()).body
    names = [name.asname for node in body if isinstance(node, ast.ImportFrom) for name in node.names]
    assert sorted(filter(None, names)) == sorted(set(engined.__all__) - {"__version__"})
    assert set(engined.__all__) <= set(dir(engined))
    for name in engined.__all__:
        assert getattr(engined, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        engined.LLMs  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = "import sys, engined; print([name for name in sys.modules if name.startswith('engined.')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
