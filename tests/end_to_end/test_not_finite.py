"""A request whose logits are not finite ends alone: its neighbours and its successors in the cache never notice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.end_to_end.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.server import running

POISON = 5


def test_a_poisoned_request_ends_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = float("nan")
    model.save_pretrained(tmp_path / "model")
    write_byte_tokenizer(tmp_path / "model")
    healthy = [[10 + i, *range(100, 130 + i)] for i in range(8)]
    fields = {"max_tokens": 20, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    # 30 blocks: the poisoned ones are soon taken by others, whose last blocks are only partly filled.
    block_bytes = 16 * 2 * 2 * 2 * 8 * 4
    flags = ("--dtype", "float32", "--kv-cache-memory", str(30 * block_bytes), "--max-model-len", "128")
    with running(tmp_path / "model", tmp_path, *flags) as server:

        def complete(prompt: list[int]) -> tuple[int, object]:
            status, body = server.post("/v1/completions", {"prompt": prompt, **fields})
            return status, body["choices"][0]["token_ids"] if status == 200 else body["error"]["message"]

        alone = [complete(prompt) for prompt in healthy]
        assert all(status == 200 for status, _ in alone)
        poisoned = [[POISON, *range(50, 50 + 7 * i)] for i in range(1, 6)]
        with ThreadPoolExecutor(13) as pool:
            answers = list(pool.map(complete, [*poisoned, *healthy]))
        assert all(status == 500 and "not finite" in str(text) for status, text in answers[:5]), answers[:5]
        assert answers[5:] == alone
        assert [complete(prompt) for prompt in healthy] == alone
