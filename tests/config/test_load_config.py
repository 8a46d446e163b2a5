"""Options from flags, environment and TOML: precedence, origins, types, and what a mistake is answered with."""

from pathlib import Path

import pytest

from engined.config.load import LoadedConfig, load_config
from engined.config.options import all_options
from engined.config.schema import Config
from engined.errors import ConfigError

ROOT = Path(__file__).parents[2]


def _load(tmp_path: Path, toml: str = "", flags: dict[str, object] | None = None, **environ: str) -> LoadedConfig:
    path = tmp_path / "c.toml"
    path.write_text(toml)
    return load_config(flags or {}, environ, path)  # type: ignore[arg-type]


def test_defaults() -> None:
    loaded = load_config({}, {"HOME": "/root", "PATH": "/bin"}, None)
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.is_default("port")


def test_precedence_and_sources(tmp_path: Path) -> None:
    toml = '[server]\nport = 1\n\n[scheduler]\nmax_num_seqs = 2\nscheduling_policy = "priority"\n'
    loaded = _load(tmp_path, toml, {"port": "3"}, ENGINED_PORT="4", ENGINED_MAX_NUM_SEQS="5", ENGINED_HOST="::1")
    assert loaded.config.server.port == 3
    assert loaded.config.scheduler.max_num_seqs == 5
    assert loaded.config.scheduler.scheduling_policy == "priority"
    assert loaded.config.server.host == "::1"
    assert loaded.sources["port"] == "flag --port"
    assert loaded.sources["max_num_seqs"] == "environment ENGINED_MAX_NUM_SEQS"
    assert loaded.sources["scheduling_policy"] == f"file {tmp_path}/c.toml, line 6"
    assert loaded.sources["block_size"] == "default"


def test_file_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[server]\nport = 1\n")
    loaded = load_config({}, {"ENGINED_CONFIG": str(tmp_path / "c.toml")}, None)
    assert loaded.config.server.port == 1


def test_empty_variable_counts_as_unset() -> None:
    assert load_config({}, {"ENGINED_PORT": ""}, None).config == Config()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kv_cache_memory", "2GiB", 2 << 30),
        ("kv_cache_memory", "512M", 512 << 20),
        ("kv_cache_memory", "1.5g", 3 << 29),
        ("kv_cache_memory", "1GB", 10**9),
        ("kv_cache_memory", "4096", 4096),
        ("max_model_len", "8k", 8000),
        ("max_model_len", "8K", 8192),
        ("max_num_batched_tokens", "1M", 1 << 20),
        ("served_model_name", "a, b", ("a", "b")),
        ("override_generation_config", '{"top_p": 0.5}', {"top_p": 0.5}),
        ("enable_prefix_caching", "off", False),
        ("shutdown_timeout", "0", 0.0),
        ("dtype", "float32", "float32"),
    ],
)
def test_text_becomes_a_value(name: str, text: str, value: object) -> None:
    loaded = load_config({}, {f"ENGINED_{name.upper()}": text}, None)
    table = next(option.table for option in all_options() if option.name == name)
    result = getattr(getattr(loaded.config, table), name)
    assert result == value
    assert type(result) is type(value)


def test_toml_takes_the_same_sizes_and_tables(tmp_path: Path) -> None:
    loaded = _load(
        tmp_path,
        '[cache]\nkv_cache_memory = "1GiB"\n[model]\nmax_model_len = 4096\nserved_model_name = ["x", "y"]\n'
        "override_generation_config = {top_k = 5}\n[server]\nshutdown_timeout = 5\n",
    )
    assert loaded.config.cache.kv_cache_memory == 1 << 30
    assert loaded.config.model.served_model_name == ("x", "y")
    assert loaded.config.model.override_generation_config == {"top_k": 5}
    assert loaded.config.server.shutdown_timeout == 5.0


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[server]\n\nprot = 1\n", r"c\.toml, line 3: unknown key prot in \[server\]\. Did you mean port\?"),
        ("[sever]\nport = 1\n", r"c\.toml, line 1: unknown table sever\. Did you mean server\?"),
        ("[server]\nmax_num_seqs = 1\n", r"line 2: max_num_seqs belongs under \[scheduler\], not under \[server\]"),
        ("port = 1\n", r"line 1: port belongs under \[server\]"),
        ("prot = 1\n", r"line 1: unknown key prot\. Did you mean port\?"),
        ("server = 1\n", r"line 1: server is a table"),
        ("[server]\nport = true\n", r"port \(file .*c\.toml, line 2\): True is not a whole number"),
        ('[server]\nport = "80"\n', r"port .*'80' is not a whole number"),
        ("[server]\nport = 70000\n", r"port .*line 2\): 70000 is too large: the most is 65535"),
        ('[model]\ndtype = "int3"\n', r"dtype .*'int3' is not one of auto, bfloat16, float32"),
        ("[server]\nport = \n", r"is not TOML: .*line 2"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _load(tmp_path, toml)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ENGINED_MAX_NUM_SEQ", "1", "ENGINED_MAX_NUM_SEQ is not an option.* Did you mean ENGINED_MAX_NUM_SEQS?"),
        ("ENGINED_PORT", "x", r"--port \(environment ENGINED_PORT\): 'x' is not a whole number"),
        ("ENGINED_SEED", "-1", r"--seed .*: -1 is too small: the least is 0"),
        ("ENGINED_SHUTDOWN_TIMEOUT", "nan", r"--shutdown-timeout .*nan is too small"),
        ("ENGINED_KV_CACHE_MEMORY", "2 apples", r"--kv-cache-memory .*'2 apples' is not a size"),
        ("ENGINED_MAX_MODEL_LEN", "8kk", r"--max-model-len .*'8kk' is not a number of tokens"),
        ("ENGINED_OVERRIDE_GENERATION_CONFIG", "[1]", r"\[1\] is not a JSON object"),
        ("ENGINED_OVERRIDE_GENERATION_CONFIG", "{", r"'\{' is not JSON"),
        ("ENGINED_ENABLE_PREFIX_CACHING", "maybe", r"'maybe' is not true or false"),
    ],
)
def test_mistakes_in_the_environment(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({}, {variable: text}, None)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config: cannot read .*nowhere\.toml: No such file"):
        load_config({}, {}, tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ["laptop", "gpu"])
def test_examples_load(name: str) -> None:
    path = ROOT / "configs" / f"{name}.toml"
    loaded = load_config({}, {}, path)
    assert loaded.config != Config()
    for option, source in loaded.sources.items():
        if source != "default":
            number = int(source.rpartition(" ")[2])
            assert path.read_text().splitlines()[number - 1].startswith(option)


def test_every_option_and_table_is_documented() -> None:
    names = [option.name for option in all_options()]
    assert len(set(names)) == len(names)
    for option in all_options():
        assert option.help.endswith("."), option.name
