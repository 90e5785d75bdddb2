"""The rules of structure and naming; every failure message says what to change."""

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES = 400
LONGER_FILES = {
    "crew/runs/events.py": 600,  # all events in one file: readers look for an event there, and compare it with others
}
FUNCTION_LINES = 50
PUBLIC_NAMES = 40
TEST_NAME_LENGTH = 75
PROBES = ("getattr", "hasattr", "setattr")
SHARED_BASENAMES = {
    "interfaces": "crew/runs has the interfaces that need run types; crew/interfaces.py has all others",
    "result": "crew/transitions/result.py builds the value that crew/runs/result.py declares",
}
EMPTY_NAMES = re.compile(r"(manager|helper|util|utility|utilitie|common|impl)s?")
TEST_FUNCTION = re.compile(r"^ *(?:async )?def (test_\w*)", re.MULTILINE)  # parsing all tests takes seconds
NOT_A_REASON = re.compile(r"(noqa|pragma|type:\s*ignore)[^#]*")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.source).readline))

    @cached_property
    def code_lines(self) -> set[int]:
        """Numbers of the lines with code, without blank lines and comment lines."""
        return {
            line
            for token in self.tokens
            if token.type not in LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }

    def reason(self, line: int) -> str:
        """The comment on a line, without directives for tools."""
        return NOT_A_REASON.sub("", self.comment(line)).strip("#: ")

    def comment(self, line: int) -> str:
        """The comment on a line, or nothing."""
        return " ".join(t.string for t in self.tokens if t.type == tokenize.COMMENT and t.start[0] == line)

    def find(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self.nodes if isinstance(node, kinds))


def short_file(module: Module) -> Iterator[str]:
    """A file has at most 400 lines."""
    lines, most = len(module.source.splitlines()), LONGER_FILES.get(module.path, FILE_LINES)
    if lines > most:
        yield f"{module.path}: {lines} lines, at most {most}. Split it by responsibility."


def short_function(module: Module) -> Iterator[str]:
    """A function has at most 50 lines of code, without docstring, blank lines and comments."""
    for node in module.find(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, Function)
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        span = range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)
        if len(span) <= FUNCTION_LINES:
            continue  # finding the lines with code takes most of the time

        lines = len(module.code_lines & set(span))
        if lines > FUNCTION_LINES:
            yield (
                f"{module.path}:{node.lineno}: {node.name} has {lines} lines of code, at most {FUNCTION_LINES}. "
                "Move a part of it to another function."
            )


def import_at_the_top(module: Module) -> Iterator[str]:
    """Our packages are imported at the top of a file; only an SDK may be imported later.

    The `__init__.py` of a package declares public names under TYPE_CHECKING if it imports them on first use.
    """
    declares_names = module.path.endswith("__init__.py")

    for scope in module.find(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If):
        if isinstance(scope, ast.If) and (declares_names or not is_for_type_checkers(scope.test)):
            continue

        where = "under TYPE_CHECKING" if isinstance(scope, ast.If) else "inside a function"
        for node in ast.walk(scope):
            if imports_crew(node):
                yield (
                    f"{module.path}:{node.lineno}: `{ast.unparse(node)}` {where}. "
                    "Import it at the top; if that makes a cycle, move the shared part to a lower package."
                )


def is_for_type_checkers(test: ast.expr) -> bool:
    return any("TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(test))


def imports_crew(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(name.name.split(".")[0] == "crew" for name in names)
        case ast.ImportFrom(module=name, level=level):
            return level > 0 or (name or "").split(".")[0] == "crew"
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return isinstance(first, ast.Constant) and str(first.value).split(".")[0] in {"crew", ""}
        case _:
            return False


def broad_except_with_reason(module: Module) -> Iterator[str]:
    """Only the boundary to user code (tools, observers, stores, CLI) catches everything, with a reason on the line."""
    for node in module.nodes:
        match node:
            case ast.ExceptHandler(type=caught):
                broad = caught is None or is_broad(caught)
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=caught):
                broad = any(map(is_broad, caught))
            case _:
                continue

        if broad and len(module.reason(node.lineno).split()) < 2:
            yield (
                f"{module.path}:{node.lineno}: catches everything. Name the errors; "
                "at the boundary to user code, give the reason in a comment on this line."
            )


def is_broad(caught: ast.expr) -> bool:
    broad = {"Exception", "BaseException", "ExceptionGroup", "BaseExceptionGroup"}
    return any(ast.unparse(part).removeprefix("builtins.") in broad for part in getattr(caught, "elts", [caught]))


def descriptive_module_name(module: Module) -> Iterator[str]:
    """A module name describes its content."""
    for part in Path(module.path).with_suffix("").parts:
        for word in part.split("_"):
            if EMPTY_NAMES.fullmatch(word):
                yield f"{module.path}: {word!r} describes nothing. Name the module after its content."


def module_docstring(module: Module) -> Iterator[str]:
    """A module has a docstring of one sentence."""
    if not (ast.get_docstring(module.tree) or "").strip():
        yield f"{module.path}: no docstring. State the responsibility of the module in one sentence."


def no_string_probe(module: Module) -> Iterator[str]:
    """Attributes of our types are never looked up by name; `# foreign: OBJECT` marks a probe of a foreign object."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(value=str(attribute)), *_]) if name in PROBES:
                if not module.comment(node.lineno).startswith("# foreign: "):
                    yield (
                        f"{module.path}:{node.lineno}: {name} of {attribute!r}. Declare the attribute in an interface; "
                        "for an object that is not ours, name it in a comment on this line: `# foreign: OBJECT`."
                    )


RULES: list[Callable[[Module], Iterator[str]]] = [
    short_file,
    short_function,
    import_at_the_top,
    broad_except_with_reason,
    descriptive_module_name,
    module_docstring,
    no_string_probe,
]


@cache  # all rules look at the same parsed files
def modules(folder: str = "crew") -> list[Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_follows_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    """Every file of the package follows every rule."""
    violations = list(dict.fromkeys(violation for module in modules() for violation in rule(module)))
    assert not violations, "\n" + "\n".join(violations)


def repeated_basenames(paths: list[str]) -> dict[str, list[str]]:
    """Basenames that several modules share, without `__init__` and the accepted ones."""
    found: dict[str, list[str]] = {}

    for path in paths:
        found.setdefault(Path(path).stem, []).append(path)

    accepted = {"__init__", *SHARED_BASENAMES}
    return {name: places for name, places in found.items() if len(places) > 1 and name not in accepted}


def test_module_basenames_are_unique() -> None:
    """A module is found by its name; SHARED_BASENAMES lists the exceptions with their reasons."""
    assert repeated_basenames(["crew/a.py", "crew/b/a.py", "crew/b/__init__.py", "crew/c/__init__.py"]) == {
        "a": ["crew/a.py", "crew/b/a.py"]
    }
    paths = [module.path for module in modules()]
    assert not repeated_basenames(paths), "Rename one module of each pair."
    assert set(SHARED_BASENAMES) <= {Path(path).stem for path in paths}, "Remove exceptions that are not needed."


def long_test_names(module: Module) -> Iterator[str]:
    """Test functions whose name is longer than the limit."""
    for name in TEST_FUNCTION.findall(module.source):
        if len(name) > TEST_NAME_LENGTH:
            yield f"{module.path}: {name} has {len(name)} characters"


def test_names_of_tests_are_short() -> None:
    """A test name states one fact in at most 75 characters; the docstring explains it."""
    assert list(long_test_names(Module("tests/a.py", f"def test_{'x' * TEST_NAME_LENGTH}(): ...\n")))
    found = [violation for module in modules("tests") for violation in long_test_names(module)]
    assert not found, "\n" + "\n".join(found)


def test_public_names_are_few_sorted_and_importable() -> None:
    """`__all__` is the contract: short enough to read, sorted, and every name exists."""
    crew = importlib.import_module("crew")
    names = list(getattr(crew, "__all__", []))
    missing = [name for name in names if not hasattr(crew, name)]
    assert len(names) <= PUBLIC_NAMES, (
        f"crew/__init__.py: __all__ has {len(names)} names, at most {PUBLIC_NAMES}. Leave the rest in their packages."
    )
    assert names == sorted(set(names)), f"crew/__init__.py: write __all__ as {sorted(set(names))}"
    assert not missing, f"crew/__init__.py: __all__ names {missing}, which crew does not have. Import or remove them."


LONG_BODY = "\n".join(f"    x{n} = {n}" for n in range(FUNCTION_LINES))


@pytest.mark.parametrize(
    ("rule", "path", "source", "violations"),
    [
        (short_file, "crew/a.py", "x = 1\n" * FILE_LINES, 0),
        (short_file, "crew/a.py", "x = 1\n" * (FILE_LINES + 1), 1),
        (short_function, "crew/a.py", f'def f():\n    """One.\n\n    Two."""\n\n    # why\n{LONG_BODY}\n', 0),
        (short_function, "crew/a.py", f"async def f():\n{LONG_BODY}\n    return x1\n", 1),
        (short_function, "crew/a.py", 'def f():\n    """Only words."""\n', 0),
        (import_at_the_top, "crew/a.py", "import crew.runs\nfrom crew import runs\n", 0),
        (import_at_the_top, "crew/a.py", "def f():\n    import openai\n", 0),
        (import_at_the_top, "crew/a.py", "if TYPE_CHECKING:\n    from openai import OpenAI\n", 0),
        (import_at_the_top, "crew/a.py", "def f():\n    from crew.runs import RunState\n", 1),
        (import_at_the_top, "crew/a.py", "async def f():\n    from . import runs\n", 1),
        (import_at_the_top, "crew/a.py", "def f():\n    importlib.import_module('crew.runs')\n", 1),
        (import_at_the_top, "crew/a.py", "if typing.TYPE_CHECKING:\n    import crew.runs\n", 1),
        (import_at_the_top, "crew/a/__init__.py", "if TYPE_CHECKING:\n    from crew.a.b import c\n", 0),
        (import_at_the_top, "crew/a/__init__.py", "def f():\n    import crew.runs\n", 1),
        (broad_except_with_reason, "crew/a.py", "try: ...\nexcept (OSError, ValueError): ...\n", 0),
        (
            broad_except_with_reason,
            "crew/a.py",
            "try: ...\nexcept Exception:  # a tool may raise anything\n    ...\n",
            0,
        ),
        (broad_except_with_reason, "crew/a.py", "try: ...\nexcept Exception:  # noqa: BLE001\n    ...\n", 1),
        (
            broad_except_with_reason,
            "crew/a.py",
            "try: ...\nexcept (OSError, BaseException):\n    # one line late\n    ...\n",
            1,
        ),
        (broad_except_with_reason, "crew/a.py", "try: ...\nexcept: ...\n", 1),
        (broad_except_with_reason, "crew/a.py", "try: ...\nexcept* Exception: ...\n", 1),
        (broad_except_with_reason, "crew/a.py", "with contextlib.suppress(Exception): ...\n", 1),
        (descriptive_module_name, "crew/tools/implied_by.py", "", 0),
        (descriptive_module_name, "crew/history/rolling.py", "", 0),
        (descriptive_module_name, "crew/run_manager.py", "", 1),
        (descriptive_module_name, "crew/utils/text.py", "", 1),
        (module_docstring, "crew/a.py", '"""Holds one thing."""\n', 0),
        (module_docstring, "crew/a.py", "x = 1\n", 1),
        (no_string_probe, "crew/a.py", "getattr(x, name)\nx.name\n", 0),
        (no_string_probe, "crew/a.py", "getattr(x, 'name')  # foreign: a logging record\n", 0),
        (no_string_probe, "crew/a.py", "hasattr(x, 'name')  # may be missing\n", 1),
        (no_string_probe, "crew/a.py", "setattr(x, 'name', 1)\n", 1),
    ],
)
def test_rule_finds_exactly_its_violations(
    rule: Callable[[Module], Iterator[str]], path: str, source: str, violations: int
) -> None:
    """Each rule can fail."""
    assert len(list(rule(Module(path, source)))) == violations
