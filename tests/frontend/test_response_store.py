"""The store of responses: its bounds, what turns share, whose they are; and the conversion of items."""

import random
import tracemalloc
import uuid

import pytest

from engined.errors import RequestError
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.response_object import InputText, MessageItem, OutputText, RefusalText
from engined.frontend.api.responses import ResponseInputItem, ResponseInputPart, ResponsesRequest
from engined.frontend.serving.responses.items import parse_input, to_message
from engined.frontend.serving.responses.store import ResponseStore, StoredItem, StoredResponse

OWNER = b"one"


def make_item(text: str) -> StoredItem:
    item = MessageItem(id=f"msg_{uuid.uuid4().hex}", role="user", status="completed", content=[InputText(text=text)])
    return StoredItem.pack(item)


def make_response(*items: StoredItem, body: bytes = b"{}", owner: bytes = OWNER) -> StoredResponse:
    return StoredResponse(owner=owner, status="completed", body=body, input_items=items[:-1], output_items=items[-1:])


def test_the_oldest_is_displaced() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1 << 20)
    for name in "abcd":
        store.add(name, make_response(make_item(name)))
    assert len(store) == 3
    with pytest.raises(RequestError, match="'a'") as caught:
        store.get("a", OWNER)
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")
    assert store.get("d", OWNER).output_items[0].unpack().content == [InputText(text="d")]


def test_a_response_belongs_to_its_key() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1 << 20)
    store.add("a", make_response(make_item("a")))
    for call in (store.get, store.delete):
        with pytest.raises(RequestError) as caught:
            call("a", b"another")
        assert caught.value.status == 404
    store.delete("a", OWNER)
    assert (len(store), store.num_bytes) == (0, 0)


def test_turns_share_their_items_and_each_counts_once() -> None:
    store = ResponseStore(max_responses=100, max_bytes=1 << 30)
    text = "x" * 10_000
    items: list[StoredItem] = []
    for turn in range(50):
        items += [make_item(text), make_item(text)]
        store.add(f"resp_{turn}", make_response(*items))
    assert 1_000_000 < store.num_bytes < 1_200_000
    store.delete("resp_49", OWNER)
    for turn in range(48):
        store.delete(f"resp_{turn}", OWNER)
    assert store.get("resp_48", OWNER).conversation == tuple(items[:-2])
    assert 980_000 < store.num_bytes < 1_000_000 + 50_000
    store.delete("resp_48", OWNER)
    assert store.num_bytes == 0


def test_one_that_is_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(max_responses=10, max_bytes=10_000)
    store.add("small", make_response(make_item("x")))
    store.add("large", make_response(make_item("x" * 20_000)))
    assert (len(store), store.num_bytes) == (0, 0)


@pytest.mark.parametrize("text", ["a", "🙂" * 300])
def test_the_bound_in_bytes_is_that_of_the_process(text: str) -> None:
    """What the store says it holds is what Python allocated for it."""
    max_bytes = 1_000_000
    random_source = random.Random(0)
    tracemalloc.start()
    try:
        store = ResponseStore(max_responses=100_000, max_bytes=max_bytes)
        before, _ = tracemalloc.get_traced_memory()
        items: list[StoredItem] = []
        for turn in range(1000):
            items = [] if random_source.random() < 0.2 else items
            items = [*items, make_item(text), make_item(text)]
            store.add(f"resp_{uuid.uuid4().hex}", make_response(*items, body=text.encode() + bytes(turn % 7)))
            assert store.num_bytes <= max_bytes
        del items
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.num_bytes > 0.9 * max_bytes
    assert 0.5 * max_bytes < after - before < 1.1 * max_bytes


def test_items_become_messages() -> None:
    items = parse_input(
        [
            ResponseInputItem(role="system", content="be brief"),
            ResponseInputItem(
                type="message",
                role="user",
                content=[
                    ResponseInputPart(type="input_text", text="one"),
                    ResponseInputPart(type="input_text", text="two"),
                ],
            ),
            ResponseInputItem(role="assistant", content=[ResponseInputPart(type="input_text", text="three")]),
            ResponseInputItem(role="assistant", content=[ResponseInputPart(type="refusal", refusal="no")]),
        ]
    )
    assert [item.content for item in items] == [
        [InputText(text="be brief")],
        [InputText(text="one"), InputText(text="two")],
        [OutputText(text="three")],
        [RefusalText(refusal="no")],
    ]
    assert len({item.id for item in items}) == 4
    messages = [to_message(StoredItem.pack(item).unpack()) for item in items]
    assert [message.role for message in messages] == ["system", "user", "assistant", "assistant"]
    assert [message.content for message in messages if isinstance(message.content, str)] == ["be brief", "three", "no"]
    parts = messages[1].content
    assert isinstance(parts, list) and [part.text for part in parts] == ["one", "two"]


BAD_INPUTS: list[tuple[str, str, str]] = [
    ("[]", "input", "empty"),
    ('[{"content": "x"}]', "input[0].role", "must be one of"),
    ('[{"role": "tool", "content": "x"}]', "input[0].role", "must be one of"),
    ('[{"role": "user"}]', "input[0].content", "required"),
    ('[{"role": "user", "content": []}]', "input[0].content", "no parts"),
    ('["x"]', "input[0]", "expected object"),
    ('[{"role": "user", "content": 5}]', "input[0].content", "expected"),
    ('[{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]',
     "input[1].content[0].type", "must be input_text"),
    ('[{"role": "user", "content": [{"type": "input_text"}]}]', "input[0].content[0].text", "required"),
    ('[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]',
     "input[0].content[0].type", "text only"),
    ('[{"role": "user", "content": [{"type": "input_text", "text": "x", "image_url": "x"}]}]',
     "input[0].content[0].image_url", "text only"),
    ('[{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]',
     "input[0].content[0].type", "must be input_text"),
    ('[{"role": "user", "content": "x", "name": "Bob"}]', "input[0].name", "leave it out"),
    ('[{"role": "user", "content": "x", "contents": "x"}]', "input[0].contents", "did you mean content?"),
    ('[{"type": "function_call_output", "call_id": "c", "output": "5"}]', "input[0].type", "tool calling"),
    ('[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]', "input[0].type", "tool calling"),
    ('[{"type": "reasoning", "id": "rs_1", "summary": []}]', "input[0].type", "reasoning"),
    ('[{"type": "item_reference", "id": "msg_1"}]', "input[0].type", "previous_response_id"),
    ('[{"type": "computer_call", "id": "x", "action": {}}]', "input[0].type", "type message"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "param", "text"), BAD_INPUTS)
def test_bad_items_are_refused_by_name(value: str, param: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_input(BodyParser(ResponsesRequest).parse(b'{"input": ' + value.encode() + b"}").input)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert text in str(caught.value).lower() and param in str(caught.value)
