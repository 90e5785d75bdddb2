"""Configuration: the only room that reads YAML and the environment."""

from crew.config.build import build_crew, executor_options
from crew.config.file_schema import ConfigFile
from crew.config.yaml_source import load

__all__ = [
    "ConfigFile",
    "build_crew",
    "executor_options",
    "load",
]
