"""Makes the MCP servers that a configuration file describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crew.config.file_schema import ConfigFile
from crew.errors import suggest
from crew.mcp.server import MCPServer


@dataclass(slots=True, kw_only=True)
class ConfiguredServers:
    """The MCP servers that a file describes; each is made once, for all agents of a crew that name it.

    `allowed` is whether the file may run commands and open connections: one that others wrote may not.
    """

    config: ConfigFile
    folder: Path
    allowed: bool
    _made: dict[str, MCPServer] = field(default_factory=dict)

    def get(self, name: str) -> MCPServer:
        """The server of this name. Raises `ValueError` or `DefinitionError`."""
        if name not in self.config.mcp_servers:
            known = self.config.mcp_servers
            hint = f" {suggest(name, known)}" if known else ""
            raise ValueError(f"mcp_servers has no server {name!r}.{hint}")

        if not self.allowed:
            raise ValueError(
                "with allowed modules, a file can't add MCP servers: they run commands, or get what the model writes"
            )

        if name not in self._made:
            self._made[name] = self._make(name, self.config.mcp_servers[name])

        return self._made[name]

    def _make(self, name: str, settings: Mapping[str, Any]) -> MCPServer:
        options = dict(settings)

        if "pins" in options:
            options["pins"] = self.folder / Path(options["pins"]).expanduser()

        if "stdio" in options:
            options["folder"] = self.folder / options.get("folder", "")

        return MCPServer(name=name, **options)
