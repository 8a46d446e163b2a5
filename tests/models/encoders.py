"""Small encoders with random weights, made by transformers, and the batches that their tests feed them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from engined.models.bert import EncoderInputs

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
ROBERTA_SIZES = SIZES | {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}

VARIANTS: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "bert": (BertModel, BertConfig(**SIZES)),
    "bert-score": (BertForSequenceClassification, BertConfig(**SIZES, num_labels=1)),
    "bert-labels": (BertForSequenceClassification, BertConfig(**SIZES, num_labels=3)),
    "xlm-roberta": (XLMRobertaModel, XLMRobertaConfig(**ROBERTA_SIZES)),
    "roberta-score": (RobertaForSequenceClassification, RobertaConfig(**ROBERTA_SIZES, num_labels=1)),
}


def make_encoder(variant: str) -> Any:
    """The transformers model of a variant, float32, with weights large enough for differences to show."""
    model_class, config = VARIANTS[variant]
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.12)
    return model


def random_tokens(length: int, seed: int) -> list[int]:
    """Ids that no family reads as padding."""
    return torch.randint(3, SIZES["vocab_size"], (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def flat_batch(sequences: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None) -> EncoderInputs:
    """Sequences one after the other; segment 0 throughout if nothing else is said."""
    lengths = [len(sequence) for sequence in sequences]
    types = token_types or [[0] * length for length in lengths]
    return EncoderInputs(
        input_ids=torch.tensor([token for sequence in sequences for token in sequence]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        token_type_ids=torch.tensor([kind for kinds in types for kind in kinds]),
        lengths=lengths,
    )


def reference_output(model: Any, tokens: Sequence[int], token_types: Sequence[int] | None = None) -> Tensor:
    """Of one sequence by itself: hidden states [num_tokens, hidden_size], or of a head the raw scores [num_labels]."""
    types = None if token_types is None else torch.tensor([token_types])
    with torch.inference_mode():
        output = model(torch.tensor([tokens]), token_type_ids=types)
    result: Tensor = output.logits[0] if hasattr(output, "logits") else output.last_hidden_state[0]
    return result


def write_pooling(folder: Path, mode: str, *, normalize: bool = True) -> None:
    """The files of sentence-transformers beside a model."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if normalize else {})
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens", "lasttoken"), False) | {mode: True}
    config = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
