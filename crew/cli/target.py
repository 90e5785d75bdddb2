"""Loads the crew or the executor that a command-line target names: a Python file, a module, or a configuration file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.cli.arguments import TARGET_HELP
from crew.config.build import build_crew
from crew.config.yaml_source import load
from crew.errors import CrewError, DefinitionError, describe, suggest
from crew.executor import CrewExecutor

CONFIG_SUFFIXES = (".yaml", ".yml")
LOADER_FILES = (__file__, importlib.__file__, "<frozen importlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a target names. `unused_executor` is the name of an executor of the same agents in the same module."""

    targets: tuple[Crew | CrewExecutor, ...]
    unused_executor: str = ""


def load_crew(target: str, allowed_modules: Sequence[str] | None = None) -> Crew:
    """Load the crew; a single agent becomes a crew with one agent. A configuration file imports `allowed_modules`."""
    return _crew_of(load_targets(target, allowed_modules, selects_all=False).targets[0])


def load_crews(target: str, allowed_modules: Sequence[str] | None = None) -> tuple[Crew, ...]:
    """Load the crew that a target names, or all crews of a configuration file without a name."""
    return tuple(map(_crew_of, load_targets(target, allowed_modules, selects_all=True).targets))


def load_targets(target: str, allowed_modules: Sequence[str] | None, *, selects_all: bool) -> Loaded:
    """Load a crew or an executor; with `selects_all`, all crews of a configuration file without a name.

    Output of the user's modules goes to stderr: stdout is for the output of the command.
    """
    with redirect_stdout(sys.stderr):
        return _load(target, allowed_modules, selects_all=selects_all)


def _load(target: str, allowed_modules: Sequence[str] | None, *, selects_all: bool) -> Loaded:
    path, _, name = target.partition(":")

    if path.endswith(CONFIG_SUFFIXES):
        return Loaded(targets=_from_config(path, name, allowed_modules, selects_all=selects_all and not name))

    module = _import_file(Path(path)) if path.endswith(".py") else _import_module(path)
    selected = _select(vars(module), name, target)
    return Loaded(targets=(selected,), unused_executor="" if name else _unused_executor(vars(module), selected))


def _crew_of(target: Crew | CrewExecutor) -> Crew:
    return target.plan.crew if isinstance(target, CrewExecutor) else target


def _from_config(path: str, name: str, allowed_modules: Sequence[str] | None, *, selects_all: bool) -> tuple[Crew, ...]:
    settings = load(path)

    if selects_all:
        if not settings.crews:
            raise DefinitionError(path, "the file has no crews")

        return tuple(build_crew(settings, name, path, allowed_modules) for name in settings.crews)

    if not name and len(settings.crews) == 1:
        name = next(iter(settings.crews))

    if not name:
        raise DefinitionError(path, f"choose a crew with {path}:NAME. {suggest('', settings.crews)}")

    return (build_crew(settings, name, path, allowed_modules),)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DefinitionError(str(path), "no such file")

    # Like `python FILE`: modules next to the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)

    if spec is None or spec.loader is None:
        raise DefinitionError(str(path), "the file can't be loaded as Python")

    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module

    with _reporting_errors(str(path)):
        spec.loader.exec_module(module)

    return module


def _import_module(name: str) -> ModuleType:
    if not name or name.startswith("."):
        raise DefinitionError("Target", f"{name!r} is neither a file nor a module. The target must be {TARGET_HELP}")

    sys.path.insert(0, str(Path.cwd()))

    try:
        with _reporting_errors(name):
            return importlib.import_module(name)
    except ImportError as error:
        raise DefinitionError(
            name, f"the module can't be imported: {error}. The target must be {TARGET_HELP}"
        ) from error


@contextmanager
def _reporting_errors(name: str) -> Iterator[None]:
    """Turn errors of the user's module into a `DefinitionError`; print a traceback without the frames of the loader."""
    try:
        yield
    except CrewError:
        raise  # its message already names the problem
    except SystemExit as error:
        raise DefinitionError(
            name,
            f"the module called sys.exit({error.code!r}) while it was loaded; "
            "put such code under if __name__ == '__main__'",
        ) from error
    except Exception as error:  # the user's module can raise anything
        trace = error.__traceback__

        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(LOADER_FILES):
            trace = trace.tb_next

        if trace is None and isinstance(error, ImportError):
            raise  # the module itself was not found

        traceback.print_exception(error.with_traceback(trace))
        raise DefinitionError(name, f"the module raised an error while it was loaded: {describe(error)}") from error


def _select(names: Mapping[str, object], name: str, target: str) -> Crew | CrewExecutor:
    crews = {key: value for key, value in names.items() if isinstance(value, Crew)}
    agents = {key: value for key, value in names.items() if isinstance(value, Agent)}
    executors = {key: value for key, value in names.items() if isinstance(value, CrewExecutor)}

    if name:
        found = crews.get(name) or executors.get(name)

        if found is None and name not in agents:
            known = [*crews, *agents, *executors]
            raise DefinitionError(target, f"no crew, agent or executor named {name!r}. {suggest(name, known)}")

        return found or Crew(agents[name].name, agents=[agents[name]])

    if "crew" in crews or len(crews) == 1:
        return crews.get("crew") or next(iter(crews.values()))

    if not crews and len(agents) == 1:
        agent = next(iter(agents.values()))
        return Crew(agent.name, agents=[agent])

    if not crews and len(executors) == 1:
        return next(iter(executors.values()))

    if not crews and not agents and not executors:
        raise DefinitionError(target, "no crew and no agent found; define one at module level: `crew = Crew(...)`")

    raise DefinitionError(
        target, f"choose one of {', '.join(f'{target}:{key}' for key in (crews or agents or executors))}"
    )


def _unused_executor(names: Mapping[str, object], selected: Crew | CrewExecutor) -> str:
    """The name of an executor that runs the same agents as the selected crew."""
    if isinstance(selected, CrewExecutor):
        return ""

    agents = {*map(id, selected.agents_by_name.values())}
    executors = ((key, value) for key, value in names.items() if isinstance(value, CrewExecutor))
    same = (key for key, value in executors if {*map(id, value.plan.crew.agents_by_name.values())} == agents)
    return next(same, "")
