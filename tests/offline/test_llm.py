"""`LLM` in this process, with the real model: the same answers as over HTTP, in order, wherever it is called from."""

import asyncio
import json
import threading
from typing import Any

import pytest

from engined import LLM, RequestOutput, SamplingParams
from engined.errors import ContextLengthError, RequestError
from tests.end_to_end.server import Server

PROMPTS = ["The capital of France is", "Once upon a time,", "def fibonacci(n):\n    ", "Water boils at"]
MESSAGES = [{"role": "user", "content": "Name a fruit."}]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [choice.text for output in outputs for choice in output.outputs]


def test_answers_are_those_of_the_server(llm: LLM, exact_server: Server) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2, prompt_logprobs=1)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    fields = {"temperature": 0, "max_tokens": 12, "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True}
    choices = exact_server.complete(prompt=PROMPTS, **fields)["choices"]
    for prompt, output, choice in zip(PROMPTS, outputs, choices, strict=True):
        [answer] = output.outputs
        assert output.prompt == prompt
        assert output.prompt_token_ids == choice["prompt_token_ids"]
        assert answer.token_ids == choice["token_ids"]
        assert (answer.text, answer.finish_reason) == (choice["text"], choice["finish_reason"])
        assert answer.logprobs is not None and output.prompt_logprobs is not None
        chosen = [entry[token_id] for entry, token_id in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert [entry.logprob for entry in chosen] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
        assert all(entry.rank == 1 for entry in chosen)
        assert answer.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in chosen))
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        for ours, theirs in zip(output.prompt_logprobs[1:], choice["prompt_logprobs"][1:], strict=True):
            assert ours is not None
            assert {str(token_id): entry.rank for token_id, entry in ours.items()} == {
                token_id: entry["rank"] for token_id, entry in theirs.items()
            }


def test_chats_are_rendered_as_by_the_server(llm: LLM, exact_server: Server) -> None:
    other = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    outputs = llm.chat([MESSAGES, other], GREEDY, use_tqdm=False)
    for messages, output in zip([MESSAGES, other], outputs, strict=True):
        body = {"messages": messages, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
        status, answer = exact_server.post("/v1/chat/completions", {**body, "return_prompt_text": True})
        assert status == 200, answer
        assert output.prompt_token_ids == answer["prompt_token_ids"]
        assert output.prompt == answer["prompt_text"]
        assert output.outputs[0].text == answer["choices"][0]["message"]["content"]


def test_one_conversation_may_be_continued(llm: LLM) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "A fruit is an"}]
    [output] = llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True)
    assert output.prompt is not None and output.prompt.endswith("A fruit is an")
    assert output.outputs[0].text


def test_a_silent_chat_may_use_all_the_room(llm: LLM) -> None:
    stop = SamplingParams(temperature=0, stop_token_ids=list(range(1000)), min_tokens=20)
    assert len(llm.chat(MESSAGES, stop, use_tqdm=False)[0].outputs[0].token_ids) > 16
    assert len(llm.generate("Once", SamplingParams(ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids) == 16


def test_results_are_in_order_whenever_they_finish(llm: LLM) -> None:
    """Far more than run at once, the long ones first."""
    lengths = [1 + (30 - index) // 3 for index in range(30)]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    prompts = [[504, 3575, 282, 1000 + index] for index in range(30)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert all(output.prompt is None for output in outputs)


def test_seeds_and_several_answers(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, temperature=1.0, max_tokens=10)
    first, second = (llm.generate("My favourite", params, use_tqdm=False)[0] for _ in range(2))
    assert [choice.index for choice in first.outputs] == [0, 1, 2]
    assert texts([first]) == texts([second])
    assert len(set(texts([first]))) == 3
    last = SamplingParams(seed=9, temperature=1.0, max_tokens=10)
    assert texts(llm.generate("My favourite", last, use_tqdm=False)) == texts([first])[2:]


def test_text_options(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, stop=["."], include_stop_str_in_output=True)
    [choice] = llm.generate("The capital of France is", params, use_tqdm=False)[0].outputs
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (" Paris.", "stop", ".")
    biased = SamplingParams(temperature=0, max_tokens=1, logit_bias={7042: -100})
    assert "Paris" not in texts(llm.generate("The capital of France is", biased, use_tqdm=False))[0]


def test_a_second_look_finds_the_cache(llm: LLM) -> None:
    prompt = [1000 + index for index in range(40)]
    counts = [llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 32]


def test_prompts_that_begin_alike_share_what_one_step_computes(llm: LLM) -> None:
    prompts = [[*range(2000, 2320), 3000 + index] for index in range(4)]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.num_cached_tokens for output in together] == [0, 320, 320, 320]
    later = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert texts(together) == texts(later)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": 3}, "prompts[1]: temperature must be from 0.0 to 2.0, not 3.0"),
        ({"temperature": "hot"}, "prompts[1]: temperature: expected float | null, got str"),
        ({"top_p": float("nan")}, "prompts[1]: top_p must be above 0.0 and at most 1.0, not nan"),
        ({"n": True}, "prompts[1]: n: expected int | null, got bool"),
        ({"logprobs": 21}, "prompts[1]: logprobs must be from 0 to 20"),
        ({"stop": [""]}, "prompts[1]: stop: a string must have 1 to"),
        ({"stop_token_ids": [10**6]}, "prompts[1]: stop_token_ids: token id 1000000 is outside the vocabulary"),
        ({"logit_bias": {1: 500}}, "prompts[1]: logit_bias must be from -100.0 to 100.0"),
        ({"min_tokens": 9, "max_tokens": 8}, "prompts[1]: min_tokens (9) is larger than max_tokens (8)"),
    ],
)
def test_bad_settings_are_named(llm: LLM, params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(**params)])
    assert str(caught.value).startswith(message)
    assert caught.value.param == next(iter(params))


def test_the_first_bad_prompt_is_named_before_anything_runs(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["good"] * 70 + ["word " * 9000, []]
    with pytest.raises(ContextLengthError, match=r"^prompts\[70\]: the prompt has \d+ tokens"):
        llm.generate(prompts)
    with pytest.raises(RequestError, match=r"^messages\[1\]: messages\[0\]\.role must be one of system"):
        llm.chat([MESSAGES, [{"role": "robot", "content": "x"}]])
    with pytest.raises(RequestError, match=r"^the prompt is empty"):
        llm.generate("")
    assert capsys.readouterr().err == "", "no bar"


@pytest.mark.parametrize("prompts", [3, b"text", ["text", 3], [["text"]], [[1.5]], {"prompt": "text"}])
def test_what_is_no_prompt(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match="must be a text"):
        llm.generate(prompts)


def test_one_setting_for_each_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match="sampling_params has 1 entries for 2 inputs"):
        llm.generate(["a", "b"], [GREEDY])
    assert llm.generate([]) == [] == llm.chat([])


def test_the_other_kind_of_model(llm: LLM) -> None:
    with pytest.raises(RequestError, match="generates text; use generate or chat"):
        llm.embed("text")
    with pytest.raises(RequestError, match="generates text; use generate or chat"):
        llm.score("text", "text")


def test_the_bar_counts_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY)
    assert "4/4" in (shown := capsys.readouterr().err)
    assert "tokens/s" in shown
    llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_inside_a_running_event_loop(llm: LLM) -> None:
    """As in a notebook, whose cells run in one."""

    async def cell() -> list[str]:
        return texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))

    assert asyncio.run(cell()) == texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))


def test_threads_share_it(llm: LLM) -> None:
    results: dict[int, list[str]] = {}

    def generate(index: int) -> None:
        results[index] = texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))

    threads = [threading.Thread(target=generate, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == results[2] == texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))


def test_constrained_answers(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
    }
    params = [
        SamplingParams(structured_outputs={"choice": ["left", "right"]}, n=2),
        SamplingParams(structured_outputs={"json": schema | {"additionalProperties": False}}, max_tokens=40),
    ]
    choosing, counting = llm.generate(["Go", "Count:"], params, use_tqdm=False)
    assert {choice.text for choice in choosing.outputs} <= {"left", "right"}
    [answer] = counting.outputs
    assert answer.finish_reason == "stop" and 0 <= json.loads(answer.text)["n"] <= 99
    for faulty, text in (({"regex": "("}, "structured_outputs.regex"), ({"json": {"enum": [{1, 2}]}}, "is not JSON")):
        with pytest.raises(RequestError, match=text):
            llm.generate("Go", SamplingParams(structured_outputs=faulty), use_tqdm=False)


def test_tools(llm: LLM) -> None:
    parameters = {
        "type": "object",
        "properties": {"kind": {"enum": ["apple", "pear"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "buy_fruit", "parameters": parameters}}]
    params = SamplingParams(temperature=0, max_tokens=100)
    fields: dict[str, Any] = {"tools": tools, "parallel_tool_calls": False, "use_tqdm": False}
    [answer] = llm.chat(MESSAGES, params, tool_choice="required", **fields)[0].outputs
    assert answer.message is not None and answer.finish_reason == "tool_calls"
    [call] = answer.message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "buy_fruit" and arguments["kind"] in ("apple", "pear")
    assert call["function"]["arguments"] in answer.text, "the text is as it was generated"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sold out"}
    [output] = llm.chat([*MESSAGES, answer.message, result], params, **fields)
    assert output.prompt is not None and "sold out" in output.prompt and "buy_fruit" in output.prompt
    assert output.outputs[0].message is not None
    with pytest.raises(TypeError, match="unexpected keyword argument 'toolz'"):
        llm.chat(MESSAGES, toolz=[])  # type: ignore[call-arg]
    assert llm.generate("One", GREEDY, use_tqdm=False)[0].outputs[0].message is None
