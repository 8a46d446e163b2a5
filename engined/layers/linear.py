"""Linear layers by how ranks share them. How a weight is held and multiplied is the `WeightMethod`'s business.

Column parallel: each rank computes some of the outputs. Row parallel: each rank takes some of the inputs, and the
partial results are summed over the ranks. A column parallel layer followed by a row parallel one needs one exchange.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from engined.layers.context import LayerContext
from engined.layers.tensor_spec import TensorSpec
from engined.layers.weight_method import LinearPart


class MergedColumnParallelLinear(nn.Module):
    """Several projections of the same input, each shared by columns, computed as one product.

    The output [rows, sum of the rank's shares] has the shares of the projections side by side.
    """

    def __init__(
        self,
        in_features: int,
        out_features: Sequence[int],
        bias: bool,
        context: LayerContext,
        *,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = tuple(out_features)
        self.shards = tuple(context.tp.shard(size) for size in out_features)
        self.output_sizes = tuple(shard.stop - shard.start for shard in self.shards)
        self.weight = context.create_weight(sum(self.output_sizes), in_features, is_gated=is_gated)
        self.bias = context.create_parameter(sum(self.output_sizes)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, in_features] -> [rows, sum(output_sizes)]"""
        return self.weight.forward(inputs, self.bias)

    def tensor_specs(self, names: Sequence[str]) -> list[TensorSpec]:
        """What to load, given the checkpoint's names of the projections, in the order of `out_features`."""
        specs: list[TensorSpec] = []
        first_row = 0
        for name, size, shard in zip(names, self.out_features, self.shards, strict=True):
            part = LinearPart(
                name=name,
                shape=(size, self.in_features),
                rows=shard,
                columns=slice(0, self.in_features),
                first_row=first_row,
            )
            specs += self.weight.tensor_specs(part)
            end_row = first_row + shard.stop - shard.start
            if self.bias is not None:
                destination = self.bias[first_row:end_row]
                specs.append(TensorSpec(name=f"{name}.bias", shape=(size,), slices=(shard,), destination=destination))
            first_row = end_row
        return specs


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One projection, shared by columns: [rows, in_features] -> [rows, out_features / size]."""

    def __init__(self, in_features: int, out_features: int, bias: bool, context: LayerContext) -> None:
        super().__init__(in_features, (out_features,), bias, context)


class GatedColumnParallelLinear(MergedColumnParallelLinear):
    """The two projections in front of a gated MLP: silu(gate(x)) * up(x), [rows, in_features] -> [rows, share]."""

    def __init__(self, in_features: int, inner_features: int, bias: bool, context: LayerContext) -> None:
        super().__init__(in_features, (inner_features, inner_features), bias, context, is_gated=True)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections; each rank has whole heads. The group's size divides both head counts."""

    def __init__(
        self, hidden_size: int, head_counts: tuple[int, int], head_dim: int, bias: bool, context: LayerContext
    ):
        """`head_counts` are the model's query and KV heads."""
        num_heads, num_kv_heads = head_counts
        kv_size = num_kv_heads * head_dim
        super().__init__(hidden_size, (num_heads * head_dim, kv_size, kv_size), bias, context)
        self.num_heads = num_heads // context.tp.size
        self.num_kv_heads = num_kv_heads // context.tp.size


class RowParallelLinear(nn.Module):
    """A projection whose inputs the ranks share: [rows, in_features / size] -> [rows, out_features], summed."""

    def __init__(self, in_features: int, out_features: int, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self.shape = (out_features, in_features)
        self.tp = context.tp
        self.shard = context.tp.shard(in_features)
        self.weight = context.create_weight(out_features, self.shard.stop - self.shard.start)
        self.bias = context.create_parameter(out_features) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """The bias is added by rank 0 alone, so that the sum has it once."""
        bias = self.bias if self.tp.rank == 0 else None
        return self.tp.all_reduce(self.weight.forward(inputs, bias))

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the projection."""
        out_features = self.shape[0]
        every_row = slice(0, out_features)
        part = LinearPart(name=name, shape=self.shape, rows=every_row, columns=self.shard, first_row=0)
        specs: list[TensorSpec] = self.weight.tensor_specs(part)
        if self.bias is not None:
            specs.append(
                TensorSpec(name=f"{name}.bias", shape=(out_features,), slices=(every_row,), destination=self.bias)
            )
        return specs
