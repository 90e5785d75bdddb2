"""The URL of a PostgreSQL database: its options, and what is wrong with it, without showing the password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from crew.errors import DefinitionError, suggest

Number = TypeVar("Number", int, float)

STORE_OPTIONS = ("pool_size", "schema", "reconnect_seconds", "lease_seconds")
CONNECTION_OPTIONS = (
    "host",
    "port",
    "dbname",
    "database",
    "user",
    "password",
    "passfile",
    "service",
    "sslmode",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "sslcrl",
    "sslpassword",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "target_session_attrs",
    "krbsrvname",
    "gsslib",
)
"""What asyncpg reads from a URL; it sends all other options to the server, which accepts the names of its settings."""

SERVER_OPTIONS = (
    "application_name",
    "client_min_messages",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "options",
    "search_path",
    "statement_timeout",
    "synchronous_commit",
    "timezone",
    "work_mem",
)
"""Some of the settings of a server that clients change, for hints."""

_PASSWORD = re.compile(r"(://[^/:]*:)[^/]*(?=@)|([?&]\w*password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL for the driver, and the options of the store that were in its query."""

    text: str
    options: dict[str, str]

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        """Split a URL. Raises `DefinitionError`."""
        check_url(url)
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        options = {name: value for name, value in query if name in STORE_OPTIONS}
        rest = urlencode([(name, value) for name, value in query if name not in options])
        return cls(urlunsplit(parts._replace(query=rest)), options)

    def number(self, name: str, default: Number) -> Number:
        """The value of an option that is a number like the default. Raises `DefinitionError`."""
        text = self.options.get(name)

        try:
            return default if text is None else type(default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise DefinitionError("PostgresStore", f"{name} in the URL must be {kind}, not {text!r}") from None


def check_url(url: str) -> None:
    """Raise `DefinitionError` if a URL can't be read. The text holds no part of it that may be a password."""
    if problems := [*_problems(url)]:
        raise DefinitionError("PostgresStore", problems)


def _problems(url: str) -> Iterator[str]:
    form = "postgresql://user@host:5432/database"
    hint = "in a password, write / as %2F, @ as %40, : as %3A, ? as %3F and # as %23"

    try:
        parts = urlsplit(url)
    except ValueError:
        yield f"the URL must have the form {form}; {hint}"
        return

    if "@" in parts.path or ("@" in f"{parts.query}{parts.fragment}" and "@" not in parts.netloc):
        yield f"the user and the password of the URL must end at the first @, as in {form}; {hint}"
        return  # what seems to be a port or an option may be a part of the password

    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""

        if port and not (port.isascii() and port.isdigit() and 0 < int(port[:9]) < 65536):
            yield f"the port of the URL must be a number from 1 to 65535, as in {form}; {hint}"

    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if not name or not value:
            yield f"the option {name!r} of the URL has no {'value' if name else 'name'}: write name=value"


def address_of(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_passwords(url: str) -> str:
    """The URL with *** for each password, before the host or as an option: for commands that are printed."""
    return _PASSWORD.sub(r"\1\2***", url)


def option_problem(url: str, refusal: str) -> str:
    """What is wrong with the option of the URL that the server names in its refusal; empty if it names none."""
    names = [name for name, _ in parse_qsl(urlsplit(url).query)]
    unknown = next((name for name in names if f'"{name}"' in refusal), None)

    if unknown is None:
        return ""

    if unknown in STORE_OPTIONS:
        return f"the URL has the option {unknown!r}: pass it as an argument, or use PostgresStore.from_url"

    known = (*STORE_OPTIONS, *CONNECTION_OPTIONS, *SERVER_OPTIONS)
    hint = close if (close := suggest(unknown, known)).startswith("Did you mean") else ""
    accepted = f"options of the store ({', '.join(STORE_OPTIONS)}), of the connection ({', '.join(CONNECTION_OPTIONS)})"
    return (
        f"the URL has the unknown option {unknown!r}. {hint}{' ' if hint else ''}Accepted are {accepted}, and settings "
        "of the server, such as application_name and statement_timeout"
    )
