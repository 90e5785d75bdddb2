"""Opens the socket of a command that serves over HTTP."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from crew.errors import DefinitionError


def listen(command: str, host: str, port: int) -> socket.socket:
    """A socket that is bound to this address. Raises `DefinitionError` if the command can't have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with this protocol; without it an answer may be delayed by 40 ms.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)

    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        opened.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DefinitionError(
            command, f"can't listen at {host}:{port}: {reason}; choose another address, or --port 0 for a free port"
        ) from error

    opened.set_inheritable(True)
    return opened


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
