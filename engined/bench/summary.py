"""Quantiles within one run, and the median with its spread over several. Used by all benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie. There must be one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What several runs said."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(median=median(values), minimum=min(values), maximum=max(values))

    def scaled(self, factor: float) -> "Spread":
        """In another unit."""
        return Spread(median=self.median * factor, minimum=self.minimum * factor, maximum=self.maximum * factor)

    def show(self, digits: int = 1) -> str:
        """For example "12.3 (11.9-14.0)"."""
        return f"{self.median:.{digits}f} ({self.minimum:.{digits}f}-{self.maximum:.{digits}f})"
