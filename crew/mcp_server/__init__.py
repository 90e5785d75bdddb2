"""Crews as an MCP server: each crew is a tool, over stdin and stdout or over HTTP (extra `mcp`)."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.mcp_server.crew_tools import CrewTools
    from crew.mcp_server.serving import http_app, serve_http, serve_stdio
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.mcp_server.crew_tools": "CrewTools",
            "crew.mcp_server.serving": "http_app serve_http serve_stdio",
        },
    )

__all__ = ["CrewTools", "http_app", "serve_http", "serve_stdio"]
