"""The store of responses: its bounds, what turns share, whose they are."""

import random
import tracemalloc
import uuid

import pytest

from engined.errors import RequestError
from engined.frontend.api.response_items import InputText, MessageItem
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
    item = store.get("d", OWNER).output_items[0].unpack()
    assert isinstance(item, MessageItem) and item.content == [InputText(text="d")]


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
    assert 0.4 * max_bytes < after - before < 1.1 * max_bytes
