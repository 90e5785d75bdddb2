"""Keeps the house small: every rule here is one of the house style, and every failure says what to do."""

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES = 400
FUNCTION_LINES = 50
PUBLIC_NAMES = 30
EMPTY_NAMES = re.compile(r"(manager|helper|util|utility|utilitie|common|impl)s?")
NOT_A_REASON = re.compile(r"(noqa|pragma|type:\s*ignore)[^#]*")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file, and what the rules want to know of it."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.source).readline))

    @cached_property
    def code_lines(self) -> set[int]:
        """Numbers of the lines that hold code: no blank ones, no comments alone."""
        return {
            line
            for token in self.tokens
            if token.type not in LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }

    def reason(self, line: int) -> str:
        """The comment on a line, without what speaks to tools only."""
        comments = (t.string for t in self.tokens if t.type == tokenize.COMMENT and t.start[0] == line)
        return NOT_A_REASON.sub("", " ".join(comments)).strip("#: ")

    def find(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


def short_file(module: Module) -> Iterator[str]:
    """A file fits in the head."""
    lines = len(module.source.splitlines())
    if lines > FILE_LINES:
        yield f"{module.path}: {lines} lines, at most {FILE_LINES}. Split it by responsibility."


def short_function(module: Module) -> Iterator[str]:
    """A function fits on a screen. Its body counts, without docstring, blank lines and comments."""
    for node in module.find(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, Function)
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        lines = len(module.code_lines & set(range(body[0].lineno, body[-1].end_lineno + 1))) if body else 0
        if lines > FUNCTION_LINES:
            yield (
                f"{module.path}:{node.lineno}: {node.name} has {lines} lines of code, at most {FUNCTION_LINES}. "
                "Give a part of it a name of its own."
            )


def open_import(module: Module) -> Iterator[str]:
    """What a room needs of the others is said at the top of the file; only a vendor's SDK may be loaded late."""
    for scope in module.find(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If):
        if isinstance(scope, ast.If) and "TYPE_CHECKING" not in ast.unparse(scope.test):
            continue

        where = "under TYPE_CHECKING" if isinstance(scope, ast.If) else "inside a function"
        for node in ast.walk(scope):
            if imports_own_room(node):
                yield (
                    f"{module.path}:{node.lineno}: `{ast.unparse(node)}` {where}. "
                    "Import it at the top; if that makes a circle, move what both need into a lower room."
                )


def imports_own_room(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(name.name.split(".")[0] == "crew" for name in names)
        case ast.ImportFrom(module=name, level=level):
            return level > 0 or (name or "").split(".")[0] == "crew"
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return isinstance(first, ast.Constant) and str(first.value).split(".")[0] in {"crew", ""}
        case _:
            return False


def reasoned_except(module: Module) -> Iterator[str]:
    """Everything is caught only at the boundaries of tool, observer and command line, and the line says why."""
    for node in ast.walk(module.tree):
        match node:
            case ast.ExceptHandler(type=caught):
                broad = caught is None or names_everything(caught)
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=caught):
                broad = any(map(names_everything, caught))
            case _:
                continue

        if broad and len(module.reason(node.lineno).split()) < 2:
            yield (
                f"{module.path}:{node.lineno}: catches everything. Name the errors; "
                "at the boundary of tool, observer or command line, give the reason in a comment on this line."
            )


def names_everything(caught: ast.expr) -> bool:
    broad = {"Exception", "BaseException", "ExceptionGroup", "BaseExceptionGroup"}
    return any(ast.unparse(part).removeprefix("builtins.") in broad for part in getattr(caught, "elts", [caught]))


def telling_name(module: Module) -> Iterator[str]:
    """A module is named for what it holds."""
    for part in Path(module.path).with_suffix("").parts:
        for word in part.split("_"):
            if EMPTY_NAMES.fullmatch(word):
                yield f"{module.path}: {word!r} says nothing. Name the module for what it holds."


def stated_responsibility(module: Module) -> Iterator[str]:
    """A module says in one sentence what it answers for."""
    if not (ast.get_docstring(module.tree) or "").strip():
        yield f"{module.path}: no docstring. Say in one sentence what this module answers for."


RULES: list[Callable[[Module], Iterator[str]]] = [
    short_file,
    short_function,
    open_import,
    reasoned_except,
    telling_name,
    stated_responsibility,
]


def modules() -> list[Module]:
    paths = sorted((ROOT / "crew").rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    """Every file of the package keeps every rule."""
    complaints = list(dict.fromkeys(complaint for module in modules() for complaint in rule(module)))
    assert not complaints, "\n" + "\n".join(complaints)


def test_the_public_names_are_few_sorted_and_there() -> None:
    """`__all__` is the contract: a reader can take it in at a glance, and every name in it exists."""
    if not (ROOT / "crew" / "__init__.py").exists():
        pytest.skip("the package has no root yet")

    crew = importlib.import_module("crew")
    names = list(getattr(crew, "__all__", []))
    missing = [name for name in names if not hasattr(crew, name)]
    assert len(names) <= PUBLIC_NAMES, (
        f"crew/__init__.py: __all__ has {len(names)} names, at most {PUBLIC_NAMES}. Leave the rest in their rooms."
    )
    assert names == sorted(set(names)), f"crew/__init__.py: write __all__ as {sorted(set(names))}"
    assert not missing, f"crew/__init__.py: __all__ names {missing}, which crew does not have. Import or remove them."


LONG_BODY = "\n".join(f"    x{n} = {n}" for n in range(FUNCTION_LINES))


@pytest.mark.parametrize(
    ("rule", "path", "source", "complaints"),
    [
        (short_file, "crew/a.py", "x = 1\n" * FILE_LINES, 0),
        (short_file, "crew/a.py", "x = 1\n" * (FILE_LINES + 1), 1),
        (short_function, "crew/a.py", f'def f():\n    """One.\n\n    Two."""\n\n    # why\n{LONG_BODY}\n', 0),
        (short_function, "crew/a.py", f"async def f():\n{LONG_BODY}\n    return x1\n", 1),
        (short_function, "crew/a.py", 'def f():\n    """Only words."""\n', 0),
        (open_import, "crew/a.py", "import crew.runs\nfrom crew import runs\n", 0),
        (open_import, "crew/a.py", "def f():\n    import openai\n", 0),
        (open_import, "crew/a.py", "if TYPE_CHECKING:\n    from openai import OpenAI\n", 0),
        (open_import, "crew/a.py", "def f():\n    from crew.runs import RunState\n", 1),
        (open_import, "crew/a.py", "async def f():\n    from . import runs\n", 1),
        (open_import, "crew/a.py", "def f():\n    importlib.import_module('crew.runs')\n", 1),
        (open_import, "crew/a.py", "if typing.TYPE_CHECKING:\n    import crew.runs\n", 1),
        (reasoned_except, "crew/a.py", "try: ...\nexcept (OSError, ValueError): ...\n", 0),
        (reasoned_except, "crew/a.py", "try: ...\nexcept Exception:  # a tool may raise anything\n    ...\n", 0),
        (reasoned_except, "crew/a.py", "try: ...\nexcept Exception:  # noqa: BLE001\n    ...\n", 1),
        (reasoned_except, "crew/a.py", "try: ...\nexcept (OSError, BaseException):\n    # one line late\n    ...\n", 1),
        (reasoned_except, "crew/a.py", "try: ...\nexcept: ...\n", 1),
        (reasoned_except, "crew/a.py", "try: ...\nexcept* Exception: ...\n", 1),
        (reasoned_except, "crew/a.py", "with contextlib.suppress(Exception): ...\n", 1),
        (telling_name, "crew/tools/implied_by.py", "", 0),
        (telling_name, "crew/history/rolling.py", "", 0),
        (telling_name, "crew/run_manager.py", "", 1),
        (telling_name, "crew/utils/text.py", "", 1),
        (stated_responsibility, "crew/a.py", '"""Holds one thing."""\n', 0),
        (stated_responsibility, "crew/a.py", "x = 1\n", 1),
    ],
)
def test_a_rule_sees_what_it_forbids_and_nothing_else(
    rule: Callable[[Module], Iterator[str]], path: str, source: str, complaints: int
) -> None:
    """A rule that cannot fail protects nothing."""
    assert len(list(rule(Module(path, source)))) == complaints
