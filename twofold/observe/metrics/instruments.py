"""Counters, gauges and histograms with labels, made for one writer and a reader elsewhere.

    instruments = Instruments()
    tokens = instruments.counter("vllm:prompt_tokens", "Prompt tokens.", "model_name", "engine")
    tokens.add(12, "smollm2", "0")            on the event loop
    still = instruments.still()               on the event loop: copies of the numbers, and no work with them
    [each.family() for each in still]         anywhere: what prometheus_client writes

Laws: only the event loop writes and takes stills, so there are no locks; counters never fall; a series has one value
for each label of its instrument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, takewhile
from typing import Final, Protocol, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

OTHER: Final = "other"
"""What stands for every value of a label beyond those that there is room for."""

Labels = tuple[str, ...]
REQUEST_SECONDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ANSWERS: Final = (1, 2, 5, 10, 20)
PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)
STEP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Ours: of one forward pass."""

MAX_CONTEXT: Final = 1 << 20


class Snapshot(Protocol):
    """Numbers of one family at one moment."""

    def family(self) -> Metric: ...


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """What a family is called, without the suffix that its kind brings, and which labels its series bear."""

    kind: str
    name: str
    help: str
    labels: tuple[str, ...]

    def metric(self) -> Metric:
        return Metric(self.name, self.help, self.kind)

    def named(self, values: Labels) -> dict[str, str]:
        return dict(zip(self.labels, values, strict=True))


@dataclass(frozen=True, slots=True)
class Values:
    """A still of a counter or gauge."""

    of: MetricFamily
    series: Sequence[tuple[Labels, float]]

    def family(self) -> Metric:
        metric = self.of.metric()
        name = f"{self.of.name}_total" if self.of.kind == "counter" else self.of.name
        for labels, value in self.series:
            metric.add_sample(name, self.of.named(labels), value)
        return metric

    def only(self, label: str, value: str) -> Values:
        """Without the series that have another value of this label; all of a family that has no such label."""
        if label not in self.of.labels:
            return self
        place = self.of.labels.index(label)
        return Values(self.of, [(labels, number) for labels, number in self.series if labels[place] == value])


@dataclass(frozen=True, slots=True)
class Distributions:
    """A still of a histogram: observations of each bucket, the last one without a bound, and their sum."""

    of: MetricFamily
    bounds: tuple[str, ...]
    series: Sequence[tuple[Labels, tuple[int, ...], float]]

    def family(self) -> Metric:
        metric, name = self.of.metric(), self.of.name
        for labels, counts, total in self.series:
            named = self.of.named(labels)
            upto = list(accumulate(counts))
            for bound, count in zip(self.bounds, upto, strict=True):
                metric.add_sample(f"{name}_bucket", {**named, "le": bound}, count)
            metric.add_sample(f"{name}_count", named, upto[-1])
            metric.add_sample(f"{name}_sum", named, total)
        return metric


class Instrument(ABC):
    """One family of series."""

    def __init__(self, family: MetricFamily) -> None:
        self.family: Final = family

    @abstractmethod
    def still(self) -> Snapshot:
        """Copies its numbers."""


class Counter(Instrument):
    """A number that only grows."""

    def __init__(self, family: MetricFamily) -> None:
        super().__init__(family)
        self._series: dict[Labels, float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Adds ``amount``, which is no less than 0; 0 makes the series known."""
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def get(self, *labels: str) -> float:
        return self._series.get(labels, 0.0)

    def still(self) -> Snapshot:
        return Values(self.family, list(self._series.items()))


class Gauge(Instrument):
    """A number as it is now."""

    def __init__(self, family: MetricFamily) -> None:
        super().__init__(family)
        self._series: dict[Labels, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self._series[labels] = value

    def drop(self, *labels: str) -> None:
        """Forgets a series that is no longer true."""
        self._series.pop(labels, None)

    def still(self) -> Snapshot:
        return Values(self.family, list(self._series.items()))


@dataclass(slots=True)
class HistogramSeries:
    """One series of a histogram."""

    counts: list[int]
    total: float = 0.0


class Histogram(Instrument):
    """How often values fell into which bucket; a bucket holds its upper bound."""

    def __init__(self, family: MetricFamily, bounds: Sequence[float]) -> None:
        super().__init__(family)
        assert list(bounds) == sorted(set(bounds)), f"{family.name}: bounds must ascend"
        self._bucket: Callable[[float], int] = partial(bisect_left, tuple(bounds))
        text: Callable[[float], str] = floatToGoString
        self._bounds = (*map(text, bounds), "+Inf")
        self._series: dict[Labels, HistogramSeries] = {}

    def observe(self, value: float, *labels: str) -> None:
        series = self._of(labels)
        series.counts[self._bucket(value)] += 1
        series.total += value

    def observe_all(self, values: Sequence[float], *labels: str) -> None:
        """Observes many at once: the loop over them is not Python's."""
        series = self._of(labels)
        for bucket, count in Tally(map(self._bucket, values)).items():
            series.counts[bucket] += count
        series.total += sum(values)

    def still(self) -> Snapshot:
        series = [(labels, tuple(each.counts), each.total) for labels, each in self._series.items()]
        return Distributions(self.family, self._bounds, series)

    def _of(self, labels: Labels) -> HistogramSeries:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = HistogramSeries([0] * len(self._bounds))
        return series


@dataclass(slots=True)
class Names:
    """Keeps a label bounded: the first ``most`` values are themselves, later ones are OTHER."""

    most: int
    _known: set[str] = field(default_factory=set)

    def of(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self.most:
            return OTHER
        self._known.add(value)
        return value


Kept = TypeVar("Kept", bound=Instrument)


class Instruments:
    """All families of a server, each under one name."""

    def __init__(self) -> None:
        self._sources: dict[str, Callable[[], Snapshot]] = {}

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """``name`` is without ``_total``, which is added where it is written."""
        return self._kept(Counter(MetricFamily("counter", name, text, labels)))

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._kept(Gauge(MetricFamily("gauge", name, text, labels)))

    def histogram(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return self._kept(Histogram(MetricFamily("histogram", name, text, labels), bounds))

    def source(self, name: str, still: Callable[[], Snapshot]) -> None:
        """Adds a family whose numbers are made when they are read."""
        assert name not in self._sources, f"{name} exists twice"
        self._sources[name] = still

    def still(self) -> list[Snapshot]:
        return [still() for still in self._sources.values()]

    @property
    def names(self) -> Iterable[str]:
        """Of the families, without suffixes."""
        return self._sources.keys()

    def _kept(self, instrument: Kept) -> Kept:
        self.source(instrument.family.name, instrument.still)
        return instrument


def token_bounds(most: int = MAX_CONTEXT) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … up to ``most`` tokens."""
    return tuple(takewhile(lambda bound: bound <= most, _one_two_five()))


def _one_two_five() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
