"""`ServerSettings`: who may use the service, and its limits."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeAlias

from starlette.requests import HTTPConnection

from crew.errors import DefinitionError, abbreviate
from crew.server.access import Principal, Token
from crew.settings import PositiveInt, Seconds, check_settings

Authenticate: TypeAlias = Callable[[HTTPConnection], Principal | Awaitable[Principal | None] | None]
"""Finds the principal of a request; None refuses it."""

ReadMetadata: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""The metadata of a run from the headers of the request that starts it."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Who may use the service, and its limits.

    tokens              the accepted bearer tokens.
    insecure_no_token   accept every request, as the principal `operator`; only for loopback addresses and tests.
    authenticate        a function that finds the principal of a request, instead of tokens.
    allow_hosts         host names that a request may be addressed to, beside the loopback names; `*` allows all.
    allow_origins       origins of other web sites, such as https://chat.example, that browsers may call from.
    metadata            a function that makes metadata of a run from the headers of its request.
    max_body_bytes      the size of a request's body.
    body_seconds        the time in which a body must arrive.
    max_runs_per_token  how many runs of one token may be under way.
    heartbeat_seconds   how often an idle stream of events sends a comment, so that proxies keep it open.
    send_seconds        a reader that takes nothing for so long is disconnected.
    max_buffered_deltas the live events that are kept for a slow reader; then it gets stored events only.
    """

    tokens: tuple[Token, ...] = ()
    insecure_no_token: bool = False
    authenticate: Authenticate | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    metadata: ReadMetadata | None = None
    max_body_bytes: PositiveInt = 4_000_000
    body_seconds: Seconds = 20.0
    max_runs_per_token: PositiveInt = 100
    heartbeat_seconds: Seconds = 15.0
    send_seconds: Seconds = 60.0
    max_buffered_deltas: PositiveInt = 1_000

    def __post_init__(self) -> None:
        check_settings(self)

        if not (self.tokens or self.insecure_no_token or self.authenticate):
            text = "nothing authenticates requests: pass tokens=(Token.of(secret),), authenticate=…, or for tests "
            raise DefinitionError("ServerSettings", f"{text}on this machine insecure_no_token=True")

        if self.insecure_no_token and "*" in self.allow_hosts:
            text = "allow_hosts=('*',) needs tokens: by a DNS entry for this machine, any web site could call the "
            raise DefinitionError("ServerSettings", f"{text}service; list the host names, or leave insecure_no_token")

        if problems := [*self._list_problems()]:
            raise DefinitionError("ServerSettings", problems)

        if problems := [*_host_problems(self.allow_hosts), *_origin_problems(self.allow_origins), *self._same_tokens()]:
            raise DefinitionError("ServerSettings", problems)

    def _list_problems(self) -> Iterator[str]:
        if not _is_list_of(self.tokens, Token):  # a secret must not be shown
            yield "tokens must be a tuple of tokens such as (Token.of(secret),)"

        for name, values, example in (
            ("allow_hosts", self.allow_hosts, "crew.example"),
            ("allow_origins", self.allow_origins, "https://chat.example"),
        ):
            if not _is_list_of(values, str):
                yield f"{name} must be a tuple of strings such as ({example!r},), not {abbreviate(values)}"

    def _same_tokens(self) -> Iterator[str]:
        known: dict[str, Token] = {}

        for token in self.tokens:
            other = known.setdefault(token.sha256, token)

            if other != token:
                who = f"{other.principal!r} and {token.principal!r}"
                yield f"tokens: {who} have the same secret with different rights; each needs its own"


def _is_list_of(values: object, kind: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def _host_problems(hosts: tuple[str, ...]) -> Iterator[str]:
    """A host that no `Host` header can equal would refuse every request."""
    for host in hosts:
        name = host.removeprefix("[").removesuffix("]")
        is_name = re.fullmatch(r"[A-Za-z0-9._-]+|\*", host) is not None

        if not is_name and not _is_address(name):
            form = "a host name without scheme, port and path, such as crew.example"
            yield f"allow_hosts (--allow-host) takes {form}, not {host!r}"


def _origin_problems(origins: tuple[str, ...]) -> Iterator[str]:
    for origin in origins:
        if not re.fullmatch(r"https?://[^/?#@\s]+/?", origin, re.IGNORECASE):
            form = "the scheme and host of a web site, such as https://chat.example"
            yield f"allow_origins (--allow-origin) takes {form}, not {origin!r}"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False

    return True
