"""MCP: the tools of MCP servers for agents. The SDK is imported when a server is connected."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.mcp.server import MCPServer, ToolSettings
    from crew.mcp.server_errors import ConnectionLost, ServerError, ServerUnavailable, ToolChanged
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.mcp.server_errors": "ConnectionLost ServerError ServerUnavailable ToolChanged",
            "crew.mcp.server": "MCPServer ToolSettings",
        },
    )

__all__ = [
    "ConnectionLost",
    "MCPServer",
    "ServerError",
    "ServerUnavailable",
    "ToolChanged",
    "ToolSettings",
]
