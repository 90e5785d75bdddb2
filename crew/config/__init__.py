"""Configuration files: read YAML with environment variables, and build crews and executor options from it."""

from crew.config.build import build_crew, executor_options
from crew.config.file_schema import ConfigFile
from crew.config.yaml_source import load

__all__ = [
    "ConfigFile",
    "build_crew",
    "executor_options",
    "load",
]
