"""What docs/providers.md shows is run as it stands there."""

import re
from pathlib import Path

import pytest

from tests.wire import Model, Reply, WireServer

DOCS = Path(__file__).parents[2] / "docs" / "providers.md"
SNIPPETS = re.findall(r"```python[^\n]*\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs(snippet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a local server, reached through the variables of the SDKs."""
    with WireServer(lambda *_: Reply(text="Because."), model=Model(era="modern")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)

        from_here: dict[str, object] = {"__name__": "snippet"}
        exec(compile(snippet, str(DOCS), "exec"), from_here)  # the docs are ours


def test_the_example_of_a_provider_is_short() -> None:
    """Forty lines at the most, or it is no example."""
    example = next(snippet for snippet in SNIPPETS if "class Parrot" in snippet)
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 40
