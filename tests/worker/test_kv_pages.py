"""Pages of KV blocks are there before they are needed, and no more of them than that."""

import ctypes
import time

import pytest
import torch
from torch import Tensor

from engined.kernels.cpu.memory import map_huge_pages
from engined.worker import kv_pages
from engined.worker.kv_pages import KVPages

MIB = 1 << 20
BLOCK = 2 * MIB
NUM_BLOCKS = 24
PAGE = 4096


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr(kv_pages, "AHEAD", 16 * MIB)
    monkeypatch.setattr(kv_pages, "_MIN_STRETCH", 8 * MIB)
    return map_huge_pages(NUM_BLOCKS * BLOCK).view(NUM_BLOCKS, BLOCK)


def resident_blocks(blocks: Tensor) -> list[int]:
    """Blocks whose pages are all there."""
    pages = (ctypes.c_ubyte * (blocks.nbytes // PAGE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(blocks.data_ptr()), ctypes.c_size_t(blocks.nbytes), pages) == 0
    is_there = torch.tensor(list(pages)).view(NUM_BLOCKS, -1).bool().all(dim=1)
    return torch.nonzero(is_there).flatten().tolist()


def note_and_wait(pages: KVPages, *block_ids: int) -> None:
    pages.note_use(block_ids)
    pages.wait()


def test_pages_are_provided_ahead_of_use(blocks: Tensor) -> None:
    pages = KVPages(blocks)
    assert resident_blocks(blocks) == []
    blocks[:2] = 7
    note_and_wait(pages, 1, 0)
    assert resident_blocks(blocks) == list(range(10))
    note_and_wait(pages, 3)
    assert resident_blocks(blocks) == list(range(10)), "not for so little"
    note_and_wait(pages, 6)
    assert resident_blocks(blocks) == list(range(15))
    note_and_wait(pages, 2)
    note_and_wait(pages)
    assert resident_blocks(blocks) == list(range(15))
    note_and_wait(pages, 20)
    assert resident_blocks(blocks) == [*range(15), 21, 22, 23], "what is said to be used gets its pages by that"
    assert (blocks[:2] == 7).all() and not blocks[2:].any()


def test_an_old_kernel_provides_pages_as_they_are_used(blocks: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "_MADV_POPULATE_WRITE", 999)
    pages = KVPages(blocks)
    note_and_wait(pages, 0)
    note_and_wait(pages, 20)
    assert resident_blocks(blocks) == []


def test_no_page_is_asked_for_while_steps_follow_each_other(blocks: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "_REST_SECONDS", 1.5)
    pages = KVPages(blocks)
    pages.note_step()
    pages.note_use([0])
    for _ in range(30):
        time.sleep(0.01)
        pages.note_step()
    assert resident_blocks(blocks) == []
    pages.wait()
    assert resident_blocks(blocks) == list(range(1, 9))
