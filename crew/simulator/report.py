"""The report of a simulation: a table, JSON values, and an SVG chart of the tokens of each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape

from crew.control_characters import escape_controls
from crew.interfaces import ModelRequest
from crew.messages import Manifest
from crew.simulator.billing import BilledRequest, Prices

PLOT, HEIGHT = 640, 420
LEFT, TOP, BOTTOM = 90, 30, 50
CHARACTER_WIDTH = 7
"""The approximate width of a character in the legend."""

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#9c6b4e", "#a463f2", "#6cc5b0", "#97bbf5")


def line_chart(lines: Sequence[tuple[str, Sequence[int]]]) -> str:
    """An SVG line chart with axes and a legend, without scripts, fonts or dependencies."""
    most = max((value for _, values in lines for value in values), default=1) or 1
    longest = max((len(values) for _, values in lines), default=1)
    width = LEFT + PLOT + 48 + CHARACTER_WIDTH * max((len(label) for label, _ in lines), default=0)
    body = "\n".join([*_axes(_axis_maximum(most), longest), *_lines(lines, _axis_maximum(most), longest)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Input tokens of each request">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _axis_maximum(value: int) -> int:
    """The next round number for the top of an axis."""
    size = 1

    while True:
        for step in (4, 8, 12, 20, 28):  # four equal parts of each are round numbers
            if step * size >= value:
                return step * size

        size *= 10


def _x(index: int, longest: int) -> float:
    return LEFT + PLOT * index / max(1, longest - 1)


def _y(value: float, most: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most


def _axes(most: int, longest: int) -> Iterator[str]:
    for part in range(5):
        value = most * part / 4
        y = _y(value, most)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + PLOT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{value:,.0f}</text>'

    for part in range(5):
        index = round((longest - 1) * part / 4)
        x, y = _x(index, longest), HEIGHT - BOTTOM + 18
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="#555">{index + 1}</text>'

    middle = LEFT + PLOT / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="#333">request</text>'
    yield f'<text x="{LEFT - 8}" y="16" text-anchor="end" fill="#333">input tokens</text>'


def _lines(lines: Sequence[tuple[str, Sequence[int]]], most: int, longest: int) -> Iterator[str]:
    for number, (label, values) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{_x(i, longest):.1f},{_y(value, most):.1f}" for i, value in enumerate(values))
        y = TOP + 10 + 20 * number
        x = LEFT + PLOT + 16
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<line x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 24}" y="{y + 4}" fill="#333">{escape(escape_controls(label))}</text>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The simulated requests of one policy, their cost, and what they contain.

    `cost` is in dollars. `goal` is the share of requests that contain the goal; `facts` and `constraints` are those
    that the last request contains. `manifests` describe the requests, without those for summaries. `valid` counts the
    requests that the strictest provider would accept.
    """

    policy: str
    limit: int | None
    billed: tuple[BilledRequest, ...] = field(repr=False)
    requests: tuple[ModelRequest, ...] = field(repr=False)
    manifests: tuple[Manifest, ...] = field(repr=False)
    cost: float
    goal: float
    facts: tuple[str, ...]
    constraints: tuple[str, ...]
    valid: int

    @property
    def summaries(self) -> int:
        return sum(bill.purpose == "summary" for bill in self.billed)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Input tokens of each request, in order."""
        return tuple(bill.input_tokens for bill in self.billed)

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def cache_share(self) -> float:
        """The share of input tokens that are read from the prompt cache."""
        return sum(bill.cached_tokens for bill in self.billed) / max(1, self.total_tokens)

    @property
    def prefix_breaks(self) -> int:
        """The number of requests that do not start with all messages of the agent's previous request."""
        return sum(bill.prefix_broken for bill in self.billed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The results of all policies for one recording."""

    rows: tuple[Row, ...]
    prices: Prices
    messages: int
    facts: tuple[str, ...]
    constraints: tuple[str, ...]

    def table(self) -> str:
        """The results as a table for the terminal."""
        heads = (
            "policy",
            "limit",
            "requests",
            "summaries",
            "peak",
            "total",
            "cached",
            "breaks",
            "cost",
            "goal",
            "facts",
        )
        lines: list[tuple[str, ...]] = [(*heads, "constraints", "valid")]

        for row in self.rows:
            counts = (row.policy, row.limit or "none", len(row.billed), row.summaries)
            tokens = (f"{max(row.tokens, default=0):,}", f"{row.total_tokens:,}", f"{row.cache_share:.0%}")
            cost = (row.prefix_breaks, f"${row.cost:.2f}")
            content = (f"{row.goal:.0%}", f"{len(row.facts)}/{len(self.facts)}")
            checks = (f"{len(row.constraints)}/{len(self.constraints)}", f"{row.valid}/{len(row.billed)}")
            lines.append(tuple(str(cell) for cell in (*counts, *tokens, *cost, *content, *checks)))

        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )

    def as_dict(self) -> dict[str, object]:
        """The results as JSON values."""
        return {
            "messages": self.messages,
            "prices": asdict(self.prices),
            "facts": list(self.facts),
            "constraints": list(self.constraints),
            "policies": [
                {
                    "policy": row.policy,
                    "limit": row.limit,
                    "requests": len(row.billed),
                    "summaries": row.summaries,
                    "peak_tokens": max(row.tokens, default=0),
                    "total_tokens": row.total_tokens,
                    "cache_share": round(row.cache_share, 4),
                    "prefix_breaks": row.prefix_breaks,
                    "cost_usd": round(row.cost, 6),
                    "goal_visible": round(row.goal, 4),
                    "facts_visible": list(row.facts),
                    "constraints_visible": list(row.constraints),
                    "valid_requests": row.valid,
                    "tokens": list(row.tokens),
                }
                for row in self.rows
            ],
        }

    def svg(self) -> str:
        """A chart of the input tokens of each request, one line for each policy."""
        return line_chart([(f"{row.policy} (${row.cost:.2f})", row.tokens) for row in self.rows])
