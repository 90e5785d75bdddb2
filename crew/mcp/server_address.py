"""How texts name a server, by its URL or command, without credentials; and the credentials in them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from crew.secret_names import is_credential_name

HIDDEN = "***"
LONGEST_COMMAND = 200


def url_text(url: str) -> str:
    """The URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def command_text(command: Sequence[str]) -> str:
    """The command without the values of sensitive options, and not longer than a few lines."""
    text = shlex.join(shown for shown, _ in _split_arguments(command))
    return text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 1]}…"


def url_secrets(url: str) -> list[str]:
    """The credentials in a URL."""
    parts = urlsplit(url)
    given = [value for name, value in parse_qsl(parts.query) if is_credential_name(name)]
    return [*given, *([unquote(parts.password)] if parts.password else [])]


def command_secrets(command: Sequence[str]) -> list[str]:
    """The values of sensitive options of a command."""
    return [secret for _, secret in _split_arguments(command) if secret]


def _split_arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument as it may be shown, and the secret that was left out: of `--token=x`, `--token x` and `TOKEN=x`."""
    is_value = False

    for index, argument in enumerate(command):
        name, equals, value = argument.partition("=")

        if is_value and not argument.startswith("-"):
            yield HIDDEN, argument
        elif index and equals and is_credential_name(name):
            yield f"{name}={HIDDEN}", value
        else:
            yield argument, ""

        is_value = bool(index) and argument.startswith("-") and not equals and is_credential_name(name)
