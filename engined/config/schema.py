"""Every option of engined, declared once. From these fields come the flags, the TOML keys and the environment names.

A field `max_num_seqs` of `SchedulerConfig` is the flag `--max-num-seqs`, the key `max_num_seqs` in the TOML table
`[scheduler]`, and the variable `ENGINED_MAX_NUM_SEQS`. Names are vLLM's where it has the option.
The objects are frozen: facts found at run time (KV blocks, EOS ids) have types of their own.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Dtype = Literal["auto", "bfloat16", "float32"]
KvCacheDtype = Literal["auto", "bfloat16", "float32", "int8"]
Quantization = Literal["none", "int8", "int4"]
RunnerChoice = Literal["auto", "generate", "pooling"]
SchedulingPolicy = Literal["fcfs", "priority"]
UnknownFields = Literal["error", "warn"]
LogLevelName = Literal["debug", "info", "warning", "error"]
LogFormatName = Literal["text", "json"]

DEFAULT_MODEL = "smollm2-135m-instruct"


def option(
    default: Any,
    help: str,
    *,
    short: str | None = None,
    metavar: str | None = None,
    kind: Literal["plain", "bytes", "tokens", "json"] = "plain",
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare one option: its default, its help text, an extra flag (`--tp`), and the range it must lie in.

    `kind` "bytes" takes sizes such as "2GiB"; "tokens" takes counts such as "8k" (8000) and "8K" (8192); "json" takes
    a JSON object. Tuples are given by repeating the flag, or with commas in the environment.
    """
    metadata = {
        "help": help,
        "short": short,
        "metavar": metavar,
        "kind": kind,
        "minimum": minimum,
        "maximum": maximum,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str = option(DEFAULT_MODEL, "A Hugging Face folder, a .gguf file, a catalogue name or a hub id.")
    served_model_name: tuple[str, ...] = option(
        (), "Name(s) that clients use; the first is echoed. Default: from MODEL."
    )
    runner: RunnerChoice = option(
        "auto", "What the model is for: text, or embeddings and scores. auto: what its own files say."
    )
    dtype: Dtype = option(
        "auto", "Type of weights and activations. auto: bfloat16 where the CPU computes in it, else float32."
    )
    quantization: Quantization = option(
        "none",
        "Bits of the weights that layers multiply by: int8 takes half of bfloat16's memory and time, int4 less still, "
        "at some cost in quality. Blocks of 4 bits in a .gguf file stay as they are with int4.",
    )
    max_model_len: int | None = option(
        None,
        "Longest prompt plus output, in tokens (8k is 8000, 8K is 8192). Default: the model's limit, or what the KV "
        "cache holds if that is less.",
        kind="tokens",
        minimum=1,
    )
    seed: int | None = option(
        None,
        "Makes unseeded requests repeatable across restarts. Default: a fresh one each start.",
        minimum=0,
        maximum=2**63 - 1,
    )
    chat_template: str | None = option(
        None, "File with a jinja chat template that replaces the model's own.", metavar="FILE"
    )
    tool_call_parser: str = option(
        "auto",
        "How the model writes tool calls: the name of a format, auto (by the chat template), or none.",
        metavar="NAME",
    )
    reasoning_parser: str = option(
        "auto",
        "How the model writes its reasoning: the name of a format, auto (by the chat template), or none.",
        metavar="NAME",
    )
    override_generation_config: dict[str, Any] | None = option(
        None, "JSON object merged over the model's generation_config, key by key.", kind="json"
    )
    revision: str | None = option(None, "Branch, tag or commit, for a model named by its hub id.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = option(16, "Tokens in a KV block.", minimum=1, maximum=256)
    kv_cache_dtype: KvCacheDtype = option(
        "auto", "Type of the KV cache. auto: the same as --dtype. int8 holds twice as many tokens as bfloat16."
    )
    kv_cache_memory: int | None = option(
        None,
        "Bytes for the KV cache of all ranks together, for example 2GiB. Default: 30 % of the memory that is free once "
        "the weights are in.",
        kind="bytes",
        minimum=1,
    )
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of prompts that begin alike.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold."""

    max_num_seqs: int = option(256, "Requests that run at once.", minimum=1, maximum=4096)
    max_num_batched_tokens: int = option(
        512, "Tokens computed in one step, over all requests.", kind="tokens", minimum=1
    )
    long_prefill_token_threshold: int = option(
        0, "Most prompt tokens of one request in one step; 0: no limit of its own.", kind="tokens", minimum=0
    )
    max_step_ms: float | None = option(
        None,
        "Milliseconds that a step may take while streams run: a long prompt comes in by shorter pieces, so that they "
        "do not wait for it. 0: no limit. Default: 50, or five times what the streams alone take if that is longer, "
        "and more while more prompts wait than streams run.",
        minimum=0,
    )
    scheduling_policy: SchedulingPolicy = option(
        "fcfs", "Order of waiting requests. priority: lower `priority` first, then arrival."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Ranks and threads."""

    tensor_parallel_size: int = option(1, "Worker processes that share every layer.", short="tp", minimum=1, maximum=64)
    pipeline_parallel_size: int = option(1, "Groups of layers in a pipeline (only 1 for now).", short="pp", minimum=1)
    data_parallel_size: int = option(1, "Engine copies behind one frontend (only 1 for now).", short="dp", minimum=1)
    num_threads: int | None = option(
        None,
        "Compute threads of one rank. Default: the CPUs that affinity and cgroup allow, divided by the ranks.",
        minimum=1,
    )
    bind_threads: bool = option(
        False,
        "Give each compute thread a CPU of its own. Only where nothing else computes: two daemons that do it wait for "
        "each other.",
    )
    startup_timeout: float = option(
        60.0, "Seconds that a process may load without a sign of progress, before it counts as stuck.", minimum=1
    )
    step_timeout: float = option(
        120.0,
        "Seconds that one step of the engine may take, before it counts as stuck and is restarted.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP service."""

    host: str = option("127.0.0.1", "Address to listen on, or 'none' for no TCP port.")
    port: int = option(8000, "TCP port; 0 picks a free one.", minimum=0, maximum=65535)
    uds: str | None = option(
        None,
        "Path of the Unix socket, or 'none'. Default: engined.sock in the user's runtime folder.",
        metavar="PATH",
    )
    uds_group: str | None = option(
        None,
        "Group whose members may use the Unix socket, by name or number. Default: only this user.",
        metavar="GROUP",
    )
    api_key: tuple[str, ...] = option((), "Key that clients must send as a bearer token; may be repeated.")
    api_keys_file: str | None = option(
        None,
        "File with a key a line: its name, sha256: and its digest, scopes=inference,metrics,admin, and limits. "
        "`engined keys new` makes the lines; SIGHUP reads it again. Default: systemd's credential api-keys, if there "
        "is one.",
        metavar="FILE",
    )
    insecure_no_auth: bool = option(False, "Listen where other machines can reach it although there is no key.")
    allowed_host: tuple[str, ...] = option(
        (),
        "Name under which clients may address the server over TCP, besides localhost, this machine's own and IP "
        "addresses; '*' allows all. May be repeated.",
        metavar="NAME",
    )
    allowed_origin: tuple[str, ...] = option(
        (),
        "Origin of web pages that may use the server, such as https://chat.example.com; '*' allows all. May be "
        "repeated.",
        metavar="ORIGIN",
    )
    tls_certificate: str | None = option(
        None, "PEM file with the certificate of the TCP port, which then speaks HTTPS only.", metavar="FILE"
    )
    tls_key: str | None = option(None, "PEM file with the key of --tls-certificate.", metavar="FILE")
    tls_client_ca: str | None = option(
        None, "PEM file with signers: TCP clients must show a certificate of one of them, over TLS 1.3.", metavar="FILE"
    )
    stream_interval: int = option(
        1, "Tokens between two chunks of a stream; the first is sent at once.", minimum=1, maximum=1024
    )
    max_logprobs: int = option(20, "Most alternatives a request may ask for with logprobs.", minimum=0, maximum=100)
    unknown_fields: UnknownFields = option(
        "error",
        "A body with a field that nobody knows. error: refused; warn: the field is left out, and named in the header "
        "x-engined-warning.",
    )
    max_body_size: int = option(4 << 20, "Largest request body in bytes.", kind="bytes", minimum=1024)
    max_queued_requests: int = option(
        1024, "Requests that may wait for the engine; more are refused with 429.", minimum=1
    )
    max_queued_tokens: int = option(
        4 << 20,
        "Tokens that the waiting requests may have, of their prompts and of the output to be expected; more are "
        "refused with 429.",
        kind="tokens",
        minimum=1,
    )
    max_connections: int = option(4096, "Open connections; more are closed at once.", minimum=1)
    max_connections_per_ip: int | None = option(
        None,
        "Open connections of one IP address (or IPv6 /64) that is not this machine's. Default: half of "
        "--max-connections.",
        minimum=1,
    )
    responses_store_size: int = option(
        1000, "Responses of /v1/responses that are kept in memory, the newest; 0 keeps none.", minimum=0
    )
    responses_store_memory: int = option(
        64 << 20, "Most bytes that kept responses may take; the oldest go first.", kind="bytes", minimum=0
    )
    data_dir: str | None = option(
        None,
        "Folder of uploaded files and batches. Default: engined in the user's data folder, ~/.local/share/engined.",
        metavar="PATH",
    )
    shutdown_timeout: float = option(30.0, "Seconds that running requests get to finish after SIGTERM.", minimum=0)
    log_level: LogLevelName = option("info", "Least severe level that is logged.")
    log_format: LogFormatName = option("text", "Lines of the log: text for people, or a JSON object each.")
    trace: str | None = option(
        None,
        "Write what every process does in each step to FILE, as Chrome trace JSON for ui.perfetto.dev; complete when "
        "the daemon has ended.",
        metavar="FILE",
    )
    metrics_vllm_names: bool = option(
        False, "GET /metrics has every value under vLLM's name too, for dashboards that were made for vLLM."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one daemon; each field is a table of the TOML file."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    server: ServerConfig = ServerConfig()
