"""The default model's GGUF: logits against transformers' own reading of the same file."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.models.paged import PagedModel

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def test_logits_equal_those_of_transformers(default_gguf: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        str(default_gguf.parent), gguf_file=default_gguf.name, dtype=torch.float32
    )
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    logits = PagedModel.open(default_gguf).logits(PROMPT)
    assert (logits - expected).norm() / expected.norm() < 1e-3
    assert logits.argmax(-1).tolist() == expected.argmax(-1).tolist()


def test_what_the_file_says(default_gguf: Path) -> None:
    info = PagedModel.open(default_gguf).info
    assert (info.architecture, info.num_attention_heads, info.num_kv_heads, info.head_dim) == ("llama", 9, 3, 64)
    assert info.eos_token_ids[0] == 2
    assert info.tie_word_embeddings
    assert info.checkpoint_dtype == "quantized"
    assert info.num_parameters == 134_515_008
