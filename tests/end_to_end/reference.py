"""What transformers generates greedily: the reference of the exactness tests."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

NUM_TOKENS = 64

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "List five animals that live in the ocean:\n1.",
    "Water boils at",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, humans first",
    "The quick brown fox",
    "To bake bread you need flour,",
    "Photosynthesis is the process by which",
    "Q: What is 12 times 7?\nA:",
    "The history of the Roman Empire begins",
    "import numpy as np\n\n",
    "Shakespeare wrote",
    "My favourite season is autumn because",
    "The mitochondria is",
    "A haiku about rain:\n",
    "Bonjour, je m'appelle",
    "The stock market " * 30,
]


def encode(model: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts, by transformers' own conversion of the GGUF tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    return [tokenizer(prompt).input_ids for prompt in prompts]


def load(model: Path) -> PreTrainedModel:
    """The model in fp32, from a GGUF file or a folder."""
    if model.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


@torch.inference_mode()
def generate(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """NUM_TOKENS greedy tokens after each prompt, whatever the EOS. In one batch: that takes a tenth of the time."""
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    output = model.generate(
        torch.tensor([[0] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]),
        attention_mask=torch.tensor([[0] * count + [1] * (longest - count) for count in padding]),
        do_sample=False,
        min_new_tokens=NUM_TOKENS,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [answer[longest:].tolist() for answer in output]
