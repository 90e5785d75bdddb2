"""Counts readability metrics of crew/: `python scripts/count.py [--list METRIC]`.

`Any` counts uses of the name outside imports. A string probe is a getattr, hasattr or setattr with a literal attribute
name; `--list probes` shows where they are.
"""

import argparse
import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBES = ("getattr", "hasattr", "setattr")
SHORT_FILE = 60


def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "crew").rglob("*.py"))}


def uses_of_any(tree: ast.Module) -> Iterator[int]:
    """Lines on which the name `Any` is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Any":
            yield node.lineno


def string_probes(tree: ast.Module) -> Iterator[int]:
    """Lines on which an attribute is looked up by a literal name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(value=str()), *_]) if name in PROBES:
                yield node.lineno


def type_ignores(source: str) -> Iterator[int]:
    for number, line in enumerate(source.splitlines(), start=1):
        if "# type: ignore" in line:
            yield number


def measure() -> tuple[list[int], dict[str, list[str]]]:
    """The length of every file, and the places of each metric as `path:line: code`."""
    lengths: list[int] = []
    places: dict[str, list[str]] = {"Any": [], "probes": [], "ignores": []}

    for path, source in sources().items():
        tree = ast.parse(source)
        lines = source.splitlines()
        lengths.append(len(lines))

        for metric, found in (
            ("Any", uses_of_any(tree)),
            ("probes", string_probes(tree)),
            ("ignores", type_ignores(source)),
        ):
            places[metric] += [f"{path}:{number}: {lines[number - 1].strip()}" for number in found]

    return lengths, places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", choices=["Any", "probes", "ignores"], help="also list every place of this metric")
    options = parser.parse_args()
    lengths, places = measure()

    if options.list:
        print("\n".join(places[options.list]))

    short = sum(length <= SHORT_FILE for length in lengths)
    print(f"files: {len(lengths)}, of which at most {SHORT_FILE} lines: {short}")
    print(f"lines: {sum(lengths)}, median {statistics.median(lengths):.0f}, longest {max(lengths)}")
    print(f"uses of Any: {len(places['Any'])}")
    print(f"attributes probed by a literal name (getattr, hasattr, setattr): {len(places['probes'])}")
    print(f"type: ignore comments: {len(places['ignores'])}")


if __name__ == "__main__":
    main()
