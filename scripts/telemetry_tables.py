"""Generates the tables of docs/observability.md from crew.telemetry: `python scripts/telemetry_tables.py`."""

import re
from pathlib import Path

from crew.telemetry import event_table, names

PAGE = Path(__file__).parent.parent / "docs" / "observability.md"


def table(*rows: tuple[str, ...]) -> str:
    head, *body = rows
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def tables() -> dict[str, str]:
    """All tables of the page, by the name in their markers."""
    return {
        "spans": table(("span", "what it is"), *((f"`{name}`", text) for name, text in names.SPANS.items())),
        "attributes": table(("attribute", "meaning"), *((f"`{n}`", text) for n, text in names.ATTRIBUTES.items())),
        "events": table(("span event", "meaning"), *((f"`{n}`", text) for n, text in event_table.SPAN_EVENTS.items())),
        "metrics": table(
            ("metric", "kind", "unit", "meaning"),
            *((f"`{n}`", metric.kind, f"`{metric.unit}`", metric.description) for n, metric in names.METRICS.items()),
        ),
        "logs": table(
            ("line", "level", "meaning"),
            *((f"`{n}`", level, text) for n, (level, text) in event_table.LOG_EVENTS.items()),
        ),
    }


def renewed(page: str) -> str:
    """The page with current tables."""
    for name, text in tables().items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert pattern.search(page), f"docs/observability.md has no markers for the table {name!r}"
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)

    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
