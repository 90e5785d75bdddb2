"""The HTTP service: runs over HTTP with events as server-sent events, as an ASGI application (extra `serve`)."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names
from crew.server.required_packages import check_installed

check_installed()

if TYPE_CHECKING:
    from crew.server.access import Principal, Token
    from crew.server.application import app
    from crew.server.server_settings import ServerSettings
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.server.access": "Principal Token",
            "crew.server.application": "app",
            "crew.server.server_settings": "ServerSettings",
        },
    )

__all__ = ["Principal", "ServerSettings", "Token", "app"]
