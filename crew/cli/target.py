"""What a command is about: a crew in a Python file, in a module, or in a configuration file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.config.build import build_crew
from crew.config.yaml_source import load
from crew.errors import CrewError, DefinitionError, describe, suggest

CONFIG_SUFFIXES = (".yaml", ".yml")
OWN_FRAMES = (__file__, importlib.__file__, "<frozen importlib")
TARGET_HELP = "a Python file (its crew, or FILE:name), a module:name, or a configuration file with FILE.yaml:crew"


def load_crew(target: str) -> Crew:
    """The crew that a target names."""
    place, _, name = target.partition(":")

    if place.endswith(CONFIG_SUFFIXES):
        return _from_config(place, name)

    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    return _select(vars(module), name, target)


def _from_config(place: str, name: str) -> Crew:
    settings = load(place)

    if not name and len(settings.crews) == 1:
        name = next(iter(settings.crews))

    if not name:
        raise DefinitionError(place, f"say which crew: {place}:NAME. {suggest('', settings.crews)}")

    # Tools are written as module:name, and may stand beside the file.
    sys.path.insert(0, str(Path(place).resolve().parent))
    return build_crew(settings, name, place)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DefinitionError(str(path), "there is no such file")

    # As `python FILE` does, so that what stands beside the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)

    if spec is None or spec.loader is None:
        raise DefinitionError(str(path), "this can't be loaded as Python")

    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module

    with _reporting_errors(str(path)):
        spec.loader.exec_module(module)

    return module


def _from_name(name: str) -> ModuleType:
    if not name or name.startswith("."):
        raise DefinitionError("Target", f"{name!r} is neither a file nor a module. The target is {TARGET_HELP}")

    sys.path.insert(0, str(Path.cwd()))

    try:
        with _reporting_errors(name):
            return importlib.import_module(name)
    except ImportError as error:
        raise DefinitionError(name, f"this module can't be imported: {error}. The target is {TARGET_HELP}") from error


@contextmanager
def _reporting_errors(place: str) -> Iterator[None]:
    """What the user's code raises while it is loaded is shown from that code on: what led there is ours."""
    try:
        yield
    except CrewError:
        raise  # it says by itself what is wrong with what
    except SystemExit as end:
        text = f"it ended the process while it was loaded, with {end.code!r}; put what it runs under "
        raise DefinitionError(place, f"{text}if __name__ == '__main__'") from end
    except Exception as error:  # the user's file may do anything while it is loaded
        trace = error.__traceback__

        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FRAMES):
            trace = trace.tb_next

        if trace is None and isinstance(error, ImportError):
            raise  # it was not even found

        traceback.print_exception(error.with_traceback(trace))
        raise DefinitionError(place, f"it raised while it was loaded: {describe(error)}") from error


def _select(found: dict[str, Any], name: str, target: str) -> Crew:
    crews = {key: value for key, value in found.items() if isinstance(value, Crew)}
    agents = {key: value for key, value in found.items() if isinstance(value, Agent)}

    if name:
        if name not in crews and name not in agents:
            raise DefinitionError(target, f"there is no crew or agent named {name!r}. {suggest(name, crews | agents)}")

        return crews[name] if name in crews else Crew(agents[name].name, agents=[agents[name]])

    if "crew" in crews or len(crews) == 1:
        return crews.get("crew") or next(iter(crews.values()))

    if not crews and len(agents) == 1:
        agent = next(iter(agents.values()))
        return Crew(agent.name, agents=[agent])

    if not crews and not agents:
        raise DefinitionError(
            target, "there is no crew and no agent in it; write one as `crew = Crew(...)`, not indented"
        )

    raise DefinitionError(target, f"say which crew: {', '.join(f'{target}:{key}' for key in (crews or agents))}")
