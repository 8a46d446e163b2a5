"""Earlier responses, for previous_response_id and GET. Frontend process; owned by the routes, lives as long as they.

It is bounded in responses and in bytes; the oldest go first. Everything is kept as JSON, so that its size is known, and
the items that the turns of one conversation share are kept and counted once.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from engined.errors import RequestError
from engined.frontend.api.response_items import Item, OutputItem
from engined.frontend.api.response_object import Response, ResponseStatus

_ITEM_DECODER: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)
RESPONSE_OVERHEAD = 1024
ITEM_OVERHEAD = 512
POINTER_SIZE = 8
"""Bytes of Python's own objects around a response, an item, and an item's place in a tuple; a test measures them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """One item of a conversation, as GET /v1/responses/{id}/input_items shows it."""

    id: str
    data: bytes

    @classmethod
    def pack(cls, item: Item) -> "StoredItem":
        """Store `item`."""
        return cls(id=item.id, data=msgspec.json.encode(item))

    def unpack(self) -> Item:
        """The item."""
        return _ITEM_DECODER.decode(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response that has ended, and the conversation that it belongs to, without its instructions."""

    owner: bytes
    """Who may read it: the caller's API key, as a digest."""
    status: ResponseStatus
    body: bytes
    """The response object."""
    input_items: tuple[StoredItem, ...]
    output_items: tuple[StoredItem, ...]

    @property
    def conversation(self) -> tuple[StoredItem, ...]:
        """What the next turn continues."""
        return self.input_items + self.output_items

    @property
    def num_bytes(self) -> int:
        """Without the items."""
        num_items = len(self.input_items) + len(self.output_items)
        return RESPONSE_OVERHEAD + len(self.body) + POINTER_SIZE * num_items


@dataclass(slots=True)
class ResponseStore:
    """At most `max_responses` responses in at most `max_bytes`; with 0 responses there is no store."""

    max_responses: int
    max_bytes: int
    num_bytes: int = 0
    _responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    _item_uses: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def is_enabled(self) -> bool:
        """Whether it keeps anything."""
        return self.max_responses > 0

    def add(self, response_id: str, response: StoredResponse) -> None:
        """Keep a response, in the place of the oldest where there is no room. One that is too large is not kept."""
        self._responses[response_id] = response
        self.num_bytes += response.num_bytes
        for item in response.conversation:
            if self._item_uses[item.id] == 0:
                self.num_bytes += ITEM_OVERHEAD + len(item.data)
            self._item_uses[item.id] += 1
        while len(self._responses) > self.max_responses or self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._responses)))

    def get(self, response_id: str, owner: bytes) -> StoredResponse:
        """A response of `owner`. Raises RequestError 404 if there is none, also if it is somebody else's."""
        response = self._responses.get(response_id)
        if response is None or response.owner != owner:
            raise RequestError(
                f"there is no response with the id {response_id[:128]!r}; it was not stored, or has been displaced",
                status=404,
                code="response_not_found",
            )
        return response

    def delete(self, response_id: str, owner: bytes) -> None:
        """Forget a response of `owner`. Raises RequestError 404 as `get` does."""
        self.get(response_id, owner)
        self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        response = self._responses.pop(response_id)
        self.num_bytes -= response.num_bytes
        for item in response.conversation:
            self._item_uses[item.id] -= 1
            if self._item_uses[item.id] == 0:
                del self._item_uses[item.id]
                self.num_bytes -= ITEM_OVERHEAD + len(item.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecord:
    """The place in the store of a response that is not there yet; the formatter fills it when the response ends."""

    store: ResponseStore
    owner: bytes
    input_items: tuple[StoredItem, ...]

    def save(self, response: Response, output: Sequence[OutputItem]) -> None:
        """Keep the response, which has ended, and the items that the next turn sees as its output."""
        stored = StoredResponse(
            owner=self.owner,
            status=response.status,
            body=msgspec.json.encode(response),
            input_items=self.input_items,
            output_items=tuple(StoredItem.pack(item) for item in output),
        )
        self.store.add(response.id, stored)
