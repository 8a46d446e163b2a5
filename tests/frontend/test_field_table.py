"""The table of fields: it holds the whole contract, and what it says of a field is what the server does."""

import json
from typing import Any

import msgspec
import pytest

from engined.config.schema import Config, SchedulerConfig
from engined.frontend.api.field_table import FIELD_TABLE, GENERATING
from engined.frontend.api.support import field_hints, note_of
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
SHARED = """
    model stream stream_options stream_options.include_usage stream_options.include_obfuscation
    stream_options.continuous_usage_stats max_tokens temperature top_p n stop presence_penalty frequency_penalty
    logit_bias logprobs seed user safety_identifier prompt_cache_key prompt_cache_retention metadata
    response_format response_format.type response_format.json_schema response_format.json_schema.name
    response_format.json_schema.description response_format.json_schema.schema response_format.json_schema.strict
    structured_outputs.json structured_outputs.regex structured_outputs.choice structured_outputs.grammar
    structured_outputs.json_object structured_outputs.structural_tag structured_outputs.disable_any_whitespace
    store service_tier top_k min_p repetition_penalty length_penalty use_beam_search stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens mm_processor_kwargs media_io_kwargs structured_outputs priority request_id session_id
    return_tokens_as_token_ids return_token_ids return_prompt_text cache_salt kv_transfer_params ec_transfer_params
    vllm_xargs include_reasoning thinking_token_budget repetition_detection stream_interval watermarking
    routed_experts_prompt_start guided_json guided_regex guided_choice guided_grammar guided_decoding_backend best_of
"""
CHAT_ONLY = """
    messages messages[].role messages[].content messages[].content[].type messages[].content[].text
    messages[].content[].refusal messages[].content[].image_url messages[].content[].input_audio
    messages[].content[].file messages[].content[].video_url messages[].content[].audio_url
    messages[].content[].image_embeds messages[].content[].image_pil messages[].content[].uuid messages[].name
    messages[].refusal messages[].tool_calls messages[].reasoning messages[].tool_call_id max_completion_tokens
    top_logprobs tools tool_choice parallel_tool_calls reasoning_effort modalities audio prediction verbosity
    web_search_options moderation functions function_call add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs
"""
COMPLETIONS_ONLY = ["prompt", "suffix", "prompt_embeds"]


def names(endpoint: str) -> set[str]:
    return {entry.name for entry in FIELD_TABLE if endpoint in entry.endpoints}


def test_the_table_holds_the_contract() -> None:
    assert names(CHAT) >= {*SHARED.split(), *CHAT_ONLY.split()}
    assert names(COMPLETIONS) >= {*SHARED.split(), *COMPLETIONS_ONLY}
    assert all(entry.text and entry.endpoints for entry in FIELD_TABLE)
    rows = [(entry.name, endpoint) for entry in FIELD_TABLE for endpoint in entry.endpoints]
    assert len(rows) == len(set(rows))


def test_the_schema_says_what_the_table_says() -> None:
    for endpoint, struct_type in GENERATING.items():
        _, components = msgspec.json.schema_components([struct_type])
        properties = components[struct_type.__name__]["properties"]
        for entry in FIELD_TABLE:
            if endpoint in entry.endpoints and "." not in entry.name:
                assert entry.text in properties[entry.name]["description"]


async def post(frontend: RunningFrontend, endpoint: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    status, body = await frontend.post(endpoint, {**BASE[endpoint], **fields})
    return status, body.get("error") or {}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
async def test_refused_fields_name_the_remedy_and_take_what_is_harmless(
    start_frontend: StartFrontend, endpoint: str
) -> None:
    frontend = await start_frontend()
    harmless: dict[str, Any] = {}
    for name, hint in field_hints(GENERATING[endpoint]).items():
        note = note_of(hint)
        if note is not None and note.support == "refused":
            status, error = await post(frontend, endpoint, **{name: 77})
            assert (status, error["param"], error["code"]) == (400, name, "unsupported_parameter")
            assert name in error["message"] and note.text.split(" (")[0] in error["message"]
            harmless[name] = note.harmless[-1] if note.harmless else None
    assert len(harmless) > 20
    assert (await post(frontend, endpoint, **harmless))[0] == 200
    status, error = await post(frontend, endpoint, length_penalty=True)  # 1.0 is harmless, and true is not 1
    assert (status, error["param"]) == (400, "length_penalty")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
async def test_accepted_fields_change_nothing(start_frontend: StartFrontend, endpoint: str) -> None:
    values: dict[str, Any] = {
        "user": "u",
        "metadata": {"k" * 64: "v" * 512},
        "store": True,
        "service_tier": "flex",
        "safety_identifier": "s" * 64,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "session_id": "s",
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": [{"type": "text", "text": "Paris"}]},
    }
    accepted = {
        e.name for e in FIELD_TABLE if endpoint in e.endpoints and e.support == "accepted" and "." not in e.name
    }
    frontend = await start_frontend()
    assert (await post(frontend, endpoint, seed=1))[0] == 200
    assert (await post(frontend, endpoint, seed=1, **{name: values[name] for name in accepted}))[0] == 200
    plain, with_fields = frontend.engine.added
    assert plain.sampling == with_fields.sampling and plain.prompt_token_ids == with_fields.prompt_token_ids
    for name, value in (("metadata", {"k" * 65: "v"}), ("metadata", {"k": 1}), ("safety_identifier", "s" * 65)):
        status, error = await post(frontend, endpoint, **{name: value})
        assert status == 400 and error["param"].startswith(name)


def beyond(schema: dict[str, Any]) -> list[Any]:
    """Values just outside the bounds of a schema."""
    values: list[Any] = []
    if "minimum" in schema:
        values.append(schema["minimum"] - 1)
    if "maximum" in schema:
        values.append(schema["maximum"] + 1)
    if "exclusiveMinimum" in schema:
        values.append(schema["exclusiveMinimum"])
    if "minItems" in schema:
        values.append([])
    if "minLength" in schema:
        values.append("")
    if "maxLength" in schema:
        values.append("x" * (schema["maxLength"] + 1))
    if "maxItems" in schema:
        item = 5 if "integer" in json.dumps(schema) else "x"
        values.append([item] * (schema["maxItems"] + 1))
    if "maxProperties" in schema:
        values.append({str(number): 0 for number in range(schema["maxProperties"] + 1)})
    if "pattern" in schema:
        values += ["", "a b", "x" * 65]
    return values


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
async def test_the_bounds_of_the_schema_are_those_of_the_server(start_frontend: StartFrontend, endpoint: str) -> None:
    config = Config(scheduler=SchedulerConfig(scheduling_policy="priority"))
    frontend = await start_frontend(config=config)
    struct_type = GENERATING[endpoint]
    properties = msgspec.json.schema_components([struct_type])[1][struct_type.__name__]["properties"]
    num_bounded = 0
    for name, schema in properties.items():
        extra = {"logprobs": True} if name == "top_logprobs" else {}
        for value in beyond(schema):
            status, error = await post(frontend, endpoint, **extra, **{name: value})
            assert status == 400 and error["param"].startswith(name), (name, str(value)[:50], error)
            num_bounded += 1
        inside = {schema[bound] for bound in ("minimum", "maximum") if bound in schema} - {2**31 - 1}
        for value in inside:
            status, error = await post(frontend, endpoint, **extra, **{name: value})
            assert status == 200, (name, value, error)
    assert num_bounded > 40
