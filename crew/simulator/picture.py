"""The picture: tokens of each request over time, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

PLOT, HEIGHT = 640, 420
LEFT, TOP, BOTTOM = 90, 30, 50
CHARACTER = 7
"""About how wide a character of the legend is."""

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#9c6b4e", "#a463f2", "#6cc5b0", "#97bbf5")


def svg(lines: Sequence[tuple[str, Sequence[int]]]) -> str:
    """A line for each of these, with axes and a legend; no script, no font, no dependency."""
    most = max((value for _, values in lines for value in values), default=1) or 1
    longest = max((len(values) for _, values in lines), default=1)
    width = LEFT + PLOT + 48 + CHARACTER * max((len(label) for label, _ in lines), default=0)
    body = "\n".join([*_axes(_round(most), longest), *_lines(lines, _round(most), longest)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Input tokens of each request">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _round(value: int) -> int:
    """The next number that reads well on an axis."""
    size = 1

    while True:
        for step in (4, 8, 12, 20, 28):  # each of them in four equal parts
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
        yield f'<text x="{x + 24}" y="{y + 4}" fill="#333">{escape(label)}</text>'
