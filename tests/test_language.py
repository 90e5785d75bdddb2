"""Everything that a person reads is plain engineering English: the retired words and names stay retired.

`python -m tests.test_language PATH...` lists the places below other paths.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATHS = ("crew", "docs", "README.md", "CHANGELOG.md", "examples", "benchmarks", "scripts", "config.yaml")
SUFFIXES = (".md", ".py", ".yaml")

# Words of speech for events and errors; write emit, notify, report, name, error.
SPEECH = r"""
told
tells?
telling
said
unsaid
by\s+word
there\s+is:
"""

# Persons for roles; write the caller, the user, another process, the observers.
PERSONS = r"""
whoever
(nobody|somebody|anybody|everybody)('s)?
"""

# Possession and origin without a noun; write separate, custom, crew's.
POSSESSION = r"""
(of|on)\s+(its|their|his|our|your|one's)\s+own
of\s+(ours|others|theirs)
(come|comes|came)\s+of(\s+it)?
"""

# Paraphrases; write continue or resume, repair, expensive, created, available, on every exit.
PARAPHRASES = r"""
(carry|carries|carried|carrying)\s+(it\s+|the\s+run\s+|a\s+run\s+|on\s+)*on
mend(s|ed|ing)?
dear(er|est)?
at\s+birth
born
to\s+be\s+had
at\s+hand
goes\s+for
as\s+it\s+is\s+made
in\s+a\s+loop\s+of
on\s+the\s+way\s+out
whichever\s+way
whither
overhears?
hush(es)?
tid(y|ied|ies)
surveys?
verdicts?
"""

# Metaphors; write interface, package, rule or invariant, tree, span.
METAPHORS = r"""
doors?
desks?
(the|this|our)\s+house
rooms
(the|a|this|each|another|which|every|no\s+other)\s+room(?!\s+for)
laws?
lawful(ly)?
fell(ed)?\s+the
regrow
"""

# Names of modules and classes that were replaced.
NAMES = r"""
drafts?
forests?
gauges?
happenings?
lookout
pens?
tall(y|ies)
twigs?
exchanges?(?=/|\.py|\s+package)
crew\.(doors|exchanges|execution|change|manifest)
"""

# Lines that may hold such a word: the place, a part of the line, and the reason.
ALLOWED = (
    ("CHANGELOG.md", "| `crew.doors`", "the table of renamed packages lists their old names"),
    ("crew/server/prometheus.py", '_CURRENT = "gauge"', "the name of a type in the text format of Prometheus"),
    ("CHANGELOG.md", "| `RunStarted.gauges`", "the table of renamed fields lists their old names"),
)

Word = str
Place = tuple[str, int, str, Word]


def _pattern(*groups: str) -> re.Pattern[str]:
    words = [line for group in groups for line in group.split("\n") if line]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", re.IGNORECASE)


RETIRED = _pattern(SPEECH, PERSONS, POSSESSION, PARAPHRASES, METAPHORS, NAMES)


def retired_words(line: str) -> list[Word]:
    """The retired words in a line of prose or code; an underscore separates words."""
    return [match.group() for match in RETIRED.finditer(line.replace("_", " "))]


def places(name: str, text: str) -> Iterator[Place]:
    """Every retired word of a text: file, line number, line, word."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in retired_words(line):
            yield name, number, line.strip(), word


def files(*paths: str) -> Iterator[Path]:
    for path in map(ROOT.joinpath, paths):
        yield from sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path]


def found_in(*paths: str) -> list[Place]:
    return [
        place
        for path in files(*paths)
        for place in places(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


def is_allowed(place: Place) -> bool:
    name, _, line, _ = place
    return any(name == path and part in line for path, part, _ in ALLOWED)


def listing(found: list[Place]) -> str:
    return "".join(f"\n{name}:{number}: [{word}] {line[:150]}" for name, number, line, word in found)


def test_retired_words_are_found() -> None:
    """The check can fail: in prose, in identifiers, and in every group of words."""
    assert retired_words("Whoever watches is told when this is over.") == ["Whoever", "told"]
    assert retired_words("def tidy_answer(): ...") == ["tidy"]
    assert retired_words("the door, a run of its own, mended, crew.execution, the Lookout") == [
        "door",
        "of its own",
        "mended",
        "crew.execution",
        "Lookout",
    ]
    assert not retired_words("Notify observers when the run ends; room for a reply; depends; an opened file")


def test_sources_and_docs_are_in_plain_english() -> None:
    """Write it as docs/architecture.md and its glossary do."""
    found = [place for place in found_in(*PATHS) if not is_allowed(place)]
    assert not found, listing(found)


def test_help_of_the_command_is_in_plain_english() -> None:
    """`crew --help`, and the help of every subcommand."""
    top = _help()
    commands = re.findall(r"^    (\w+) ", top, re.MULTILINE)
    assert {"run", "resume", "show", "simulate"} <= set(commands)
    found = [place for command in ("", *commands) for place in places(f"crew {command} --help", _help(command))]
    assert not found, listing(found)


def test_allowed_lines_are_few_and_needed() -> None:
    """At most ten exceptions, each with a reason; an exception that no line needs is removed."""
    found = found_in(*PATHS)
    assert len(ALLOWED) <= 10

    for path, part, reason in ALLOWED:
        assert len(reason.split()) >= 3
        assert any(name == path and part in line for name, _, line, _ in found), f"not needed: {path}: {part}"


def _help(command: str = "") -> str:
    arguments = [sys.executable, "-m", "crew.cli", *([command] if command else []), "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    print(listing(found_in(*sys.argv[1:])))  # noqa: T201 - lists the places on request
