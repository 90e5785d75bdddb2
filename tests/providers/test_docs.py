"""What docs/providers.md shows is short; tests/test_docs.py runs it."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "providers.md"
SNIPPETS = re.findall(r"```python[^\n]*\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_a_provider_is_short() -> None:
    """Forty lines at the most, or it is no example."""
    example = next(snippet for snippet in SNIPPETS if "class Parrot" in snippet)
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 40
