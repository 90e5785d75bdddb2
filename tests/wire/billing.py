"""Usage, prices and the server's account, to compare with what a client reports."""

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal

MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. `fresh`, `read`, `write` and `write_1h` are disjoint; `reasoning` is part of `output`."""

    fresh: int = 0
    read: int = 0
    write: int = 0
    write_1h: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def input(self) -> int:
        """All tokens of the prompt, cached or not."""
        return self.fresh + self.read + self.write + self.write_1h

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars for a million tokens. Without `write`, writes to the cache are billed as plain input (most of OpenAI)."""

    input: str = "3"
    output: str = "15"
    read: str = "0.3"
    write: str | None = "3.75"
    write_1h: str | None = "6"

    def cost(self, usage: Usage) -> Decimal:
        """Return the exact cost of one request."""
        plain = Decimal(self.input)
        total = (
            usage.fresh * plain
            + usage.read * Decimal(self.read)
            + usage.write * (Decimal(self.write) if self.write else plain)
            + usage.write_1h * (Decimal(self.write_1h) if self.write_1h else plain)
            + usage.output * Decimal(self.output)
        )
        return total / MILLION


@dataclass(slots=True)
class Account:
    """Everything billed, in total and by model; `undelivered` is the cost of incomplete answers."""

    usage: Usage = field(default_factory=Usage)
    total: Decimal = Decimal(0)
    undelivered: Decimal = Decimal(0)
    by_model: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))

    def bill(self, model: str, usage: Usage, cost: Decimal) -> None:
        """Add one answered request."""
        self.usage += usage
        self.total += cost
        self.by_model[model] += cost

    @property
    def delivered(self) -> Decimal:
        """The cost that a client can know: that of complete answers."""
        return self.total - self.undelivered
