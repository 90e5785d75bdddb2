"""Configuration files: read YAML with environment variables, and build crews and executor options from it."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.config.build import build_crew, executor_options
    from crew.config.file_schema import ConfigFile
    from crew.config.yaml_source import load
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.config.build": "build_crew executor_options",
            "crew.config.file_schema": "ConfigFile",
            "crew.config.yaml_source": "load",
        },
    )

__all__ = [
    "ConfigFile",
    "build_crew",
    "executor_options",
    "load",
]
