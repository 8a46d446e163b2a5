"""Each family, in each variant, against transformers: fp32 logits within 1e-4 through the paged cache."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engined.kernels.cpu.library import CpuKernels
from tests.models.families import SIZES, VARIANTS, make_reference, reference_logits, save
from tests.models.paged import PagedModel


def random_tokens(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(SIZES["vocab_size"]), k=length)


@pytest.fixture(params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["torch", "kernels"])
def pair(
    request: pytest.FixtureRequest, variant: str, cpu_kernels: CpuKernels, tmp_path: Path
) -> tuple[PagedModel, object]:
    reference = make_reference(variant)
    kernels = cpu_kernels if request.param == "kernels" else None
    return PagedModel.open(save(reference, tmp_path), kernels=kernels), reference


def test_mixed_batch(pair: tuple[PagedModel, object]) -> None:
    """Decodes, a prefill with cached context and fresh prefills in one forward; then all of them decode."""
    paged, reference = pair
    sequences = {paged.add_sequence(): random_tokens(length, length) for length in (23, 5, 31, 17, 2)}
    short, long, continued, fresh, tiny = sequences
    paged.step({short: sequences[short][:22]})
    paged.step({long: sequences[long][:4]})
    paged.step({continued: sequences[continued][:13]})
    logits = paged.step(
        {
            short: sequences[short][22:],
            long: sequences[long][4:],
            continued: sequences[continued][13:],
            fresh: sequences[fresh],
            tiny: sequences[tiny],
        }
    )
    assert logits is not None and logits.dtype == torch.float32
    expected = [
        reference_logits(reference, sequences[sequence])[start:]
        for sequence, start in ((short, 22), (long, 4), (continued, 13), (fresh, 0), (tiny, 0))
    ]
    torch.testing.assert_close(logits, torch.cat(expected), rtol=0, atol=1e-4)

    extended = {sequence: [*tokens, 7] for sequence, tokens in sequences.items()}
    logits = paged.step(dict.fromkeys(sequences, [7]))
    expected = [reference_logits(reference, tokens)[-1] for tokens in extended.values()]
    torch.testing.assert_close(logits, torch.stack(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_chunked_prefill_equals_prefill_at_once(pair: tuple[PagedModel, object], chunk: int) -> None:
    paged, _ = pair
    tokens = random_tokens(29, seed=3)
    at_once = paged.logits(tokens)
    sequence = paged.add_sequence()
    chunks = [paged.step({sequence: tokens[i : i + chunk]}) for i in range(0, len(tokens), chunk)]
    torch.testing.assert_close(torch.cat(chunks), at_once, rtol=0, atol=1e-4)


def test_references_depend_on_what_is_tested() -> None:
    """The variants would prove nothing if the feature made no difference to the logits."""
    tokens = random_tokens(31, seed=1)
    plain = reference_logits(make_reference("llama"), tokens)
    for variant in ("llama3-rope", "llama-linear-rope", "mistral-window"):
        assert (reference_logits(make_reference(variant), tokens)[-1] - plain[-1]).abs().max() > 0.05


@pytest.mark.parametrize("kv_cache_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_of_weights_and_cache_mix(dtype: torch.dtype, kv_cache_dtype: torch.dtype, tmp_path: Path) -> None:
    reference = make_reference("qwen3")
    paged = PagedModel.open(save(reference, tmp_path), dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    tokens = random_tokens(20, seed=5)
    sequence = paged.add_sequence()
    logits = torch.cat([paged.step({sequence: tokens[:12]}), paged.step({sequence: tokens[12:]})])
    expected = reference_logits(reference, tokens)
    error = (logits - expected).norm() / expected.norm()
    is_exact = dtype == kv_cache_dtype == torch.float32
    assert error < (1e-5 if is_exact else 0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoints_of_16_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    paged = PagedModel.open(save(make_reference("llama").to(dtype), tmp_path))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert paged.info.checkpoint_dtype == str(dtype).removeprefix("torch.")
    tokens = random_tokens(9, seed=6)
    torch.testing.assert_close(paged.logits(tokens), reference_logits(reference, tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["llama-tied", "qwen2"])
def test_sharded_checkpoint(variant: str, tmp_path: Path) -> None:
    reference = make_reference(variant)
    save(reference, tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = random_tokens(9, seed=7)
    torch.testing.assert_close(
        PagedModel.open(tmp_path).logits(tokens), reference_logits(reference, tokens), rtol=0, atol=1e-4
    )
