"""The URL of a PostgreSQL database: wrong parts are named, and a password is never shown."""

from __future__ import annotations

import pytest

from crew.cli import main
from crew.errors import DefinitionError
from crew.store import PostgresStore
from crew.store.postgres_url import PostgresUrl, address_of, option_problem

HOST = "postgresql://crew:open-sesame@127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"{HOST}/runs?pool_size=many", "pool_size in the URL must be a whole number, not 'many'"),
        (f"{HOST}/runs?pool_size=1.5", "pool_size in the URL must be a whole number, not '1.5'"),
        (f"{HOST}/runs?pool_size=0", "pool_size must be"),
        (f"{HOST}/runs?reconnect_seconds=nan", "reconnect_seconds must be a number of seconds, 0 or above, not nan"),
        (f"{HOST}/runs?lease_seconds=0", "lease_seconds must be a number of seconds above 0, not 0.0"),
        (f"{HOST}/runs?sslmode", "the option 'sslmode' of the URL has no value"),
        (f"{HOST}/runs?=x", "has no name"),
        (f"{HOST}99999/runs", "the port of the URL must be a number from 1 to 65535"),
        ("postgresql://crew@[::1/runs", "the URL must have the form"),
        ("postgresql://crew:open-/sesame@host/runs", "in a password, write / as %2F"),
        ("postgresql://crew:12/open-sesame@host/runs", "in a password, write / as %2F"),
        ("postgresql://crew:a@b/open-sesame@host/runs", "in a password, write / as %2F"),
        ("postgresql://crew:open-?sesame@host/runs", "? as %3F"),
        ("postgresql://crew:12#open-sesame@host/runs", "# as %23"),
    ],
)
def test_wrong_url_is_refused_before_a_connection_is_made(
    url: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says it in one line, with the exit code of wrong usage."""
    assert main(["runs", "--store", url]) == 2
    printed = capsys.readouterr().err
    assert problem in printed
    assert "open" not in printed
    assert "sesame" not in printed


@pytest.mark.parametrize("url", [f"{HOST}/runs?pool_size=2&schema=shop", f"{HOST},127.0.0.1:10/runs", f"{HOST}/runs"])
def test_good_url_is_accepted(url: str) -> None:
    """Options of the store, and several hosts."""
    PostgresStore.from_url(url).close()


def test_address_is_the_url_without_credentials_and_options() -> None:
    """For messages; all hosts are named."""
    assert address_of("postgres://me:secret@a:1,[::1]:2/runs?password=secret") == "postgresql://a:1,[::1]:2/runs"


def test_options_of_the_store_are_taken_from_the_url() -> None:
    """The driver gets all others as they are written."""
    parsed = PostgresUrl.parse("postgresql://h/runs?sslmode=require&pool_size=3&application_name=a%20b")
    assert parsed == PostgresUrl("postgresql://h/runs?sslmode=require&application_name=a+b", {"pool_size": "3"})

    with pytest.raises(DefinitionError, match="option 'pool_size' of the URL has no value"):
        PostgresUrl.parse("postgresql://h/runs?pool_size=")


def test_refused_option_is_named_with_close_and_accepted_ones() -> None:
    """The server knows which settings it has; the text for the user is ours."""
    refusal = 'unrecognized configuration parameter "{}"'.format
    text = option_problem("postgresql://h/runs?application_name=x&sslmod=y", refusal("sslmod"))
    assert text.startswith("the URL has the unknown option 'sslmod'. Did you mean 'sslmode'")
    assert (
        "options of the store (pool_size, schema, reconnect_seconds, lease_seconds), of the connection (host," in text
    )
    assert "Did you mean 'pool_size'?" in option_problem("postgresql://h/runs?pool_sise=3", refusal("pool_sise"))
    assert "pass it as an argument" in option_problem("postgresql://h/runs?pool_size=3", refusal("pool_size"))
    assert option_problem("postgresql://h/runs?options=-c%20x.y%3D1", refusal("x")) == ""
