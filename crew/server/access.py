"""Who may do what: tokens, the principals behind them, and the runs that a principal may see."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from pydantic import JsonValue

from crew.errors import DefinitionError, abbreviate
from crew.runs.interfaces import PRINCIPAL_KEY

Scope = Literal["run", "read", "approve", "all"]
"""What a token allows.

run      start and cancel runs.
read     read runs, events, conversations and metrics.
approve  answer pauses.
all      see the runs of every principal, also those that no principal started; not only its own. Read instructions.
"""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
RESERVED_PREFIX = "crew."
"""Callers can't set keys of metadata with this prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The person or program that a request comes from.

    `token` identifies the token that it used, for the number of runs; without it, the name counts.
    """

    name: str
    scopes: frozenset[Scope] = SCOPES
    token: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether the token allows this."""
        return scope in self.scopes

    def sees(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a run with this metadata is visible to this principal."""
        return "all" in self.scopes or metadata.get(PRINCIPAL_KEY) == self.name

    @property
    def own_runs(self) -> dict[str, JsonValue] | None:
        """The metadata of the runs that this principal sees, as a filter of the store; None: all runs."""
        return None if "all" in self.scopes else {PRINCIPAL_KEY: self.name}


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token: its hash (the secret itself is not kept), the principal, and the scopes."""

    sha256: str
    principal: str = "operator"
    scopes: frozenset[Scope] = SCOPES

    def __post_init__(self) -> None:
        problems = []

        if len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            problems.append("sha256 must be 64 hexadecimal digits; use Token.of(secret) for the secret itself")

        if unknown := [scope for scope in self.scopes if scope not in SCOPES]:
            problems.append(f"unknown scopes {abbreviate(unknown)}; accepted are {', '.join(sorted(SCOPES))}")

        if not self.principal:
            problems.append("the name of the principal is empty")

        if problems:
            raise DefinitionError("Token", problems)

    @classmethod
    def of(cls, secret: str, principal: str = "operator", scopes: Iterable[Scope] = SCOPES) -> Self:
        """The token with this secret, which has at least 16 characters."""
        if len(secret) < 16:
            raise DefinitionError("Token", "the secret must have at least 16 characters; its value is not shown")

        return cls(_digest(secret), principal, frozenset(scopes))


@dataclass(slots=True)
class TokenTable:
    """Finds the principal of a secret. Compares hashes, so that the time taken does not depend on the secret."""

    tokens: tuple[Token, ...] = ()
    _sessions: dict[str, Token] = field(default_factory=dict)
    _links: dict[str, Token] = field(default_factory=dict)

    def find(self, secret: str) -> Principal | None:
        """The principal of a bearer token."""
        found = self._token(secret)
        return None if found is None else _principal(found)

    def find_session(self, secret: str) -> Principal | None:
        """The principal of a cookie."""
        token = self._sessions.get(_digest(secret))
        return None if token is None else _principal(token)

    def add_link(self, secret: str, token: Token) -> None:
        """Accept this secret once, in a URL, for a session with the rights of a token."""
        self._links[_digest(secret)] = token

    def sign_in(self, secret: str, session: str) -> bool:
        """Accept the secret of a session for a bearer token; False if the token is not valid."""
        token = self._token(secret)

        if token is not None:
            self._sessions[_digest(session)] = token

        return token is not None

    def exchange(self, link: str, session: str) -> bool:
        """Turn the secret of a URL, which is used up, into the secret of a session; False if it is not valid."""
        token = self._links.pop(_digest(link), None)

        if token is not None:
            self._sessions[_digest(session)] = token

        return token is not None

    def _token(self, secret: str) -> Token | None:
        digest = _digest(secret)
        return next((token for token in self.tokens if hmac.compare_digest(token.sha256, digest)), None)


def _principal(token: Token) -> Principal:
    return Principal(name=token.principal, scopes=token.scopes, token=token.sha256[:16])
