"""Texts name a server by its URL or its command, and never show a credential."""

from __future__ import annotations

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.mcp import MCPServer
from crew.mcp.server_address import command_secrets, command_text, url_secrets, url_text
from crew.runs.events import Warned
from crew.secret_names import is_credential_name
from tests.support.runs import events_of_type, run_and_collect


@pytest.mark.parametrize(
    ("command", "shown", "secrets"),
    [
        (["uvx", "mcp-server-git", "--repository", "my files"], "uvx mcp-server-git --repository 'my files'", []),
        (["server", "--api-key", "abcdefgh", "--port", "7"], "server --api-key '***' --port 7", ["abcdefgh"]),
        (["server", "--token=abc=def", "x"], "server '--token=***' x", ["abc=def"]),
        (["env", "API_TOKEN=abcdefgh", "server"], "env 'API_TOKEN=***' server", ["abcdefgh"]),
        (["server", "--no-auth", "--port", "7"], "server --no-auth --port 7", []),
        (
            ["server", "--dbpass=hunter22", "--masterkey", "abc"],
            "server '--dbpass=***' --masterkey '***'",
            ["hunter22", "abc"],
        ),
        (["token-server", "file"], "token-server file", []),
    ],
)
def test_command_is_shown_without_the_values_of_sensitive_options(
    command: list[str], shown: str, secrets: list[str]
) -> None:
    """The hidden values are secrets of the server: they are removed from messages and traces too."""
    assert command_text(command) == shown
    assert command_secrets(command) == secrets
    assert set(secrets) <= set(MCPServer(stdio=command).secrets)


@pytest.mark.parametrize(
    "name",
    [
        *["API_KEY", "apiKey", "X-Api-Key", "APIKey", "APIKEY", "TS_AUTHKEY", "key", "AWS_SECRET_ACCESS_KEY", "keys"],
        *["GITHUB_TOKEN", "AUTHTOKEN", "accessToken", "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSHPASS", "passphrase"],
        *["Authorization", "Proxy-Authorization", "x-auth", "OAUTH2_CLIENT", "Cookie", "CREDENTIALS", "clientSecret1"],
        *["DBPASS", "storepass", "keypass", "AWSSECRETACCESSKEY", "MASTERKEY", "ENCRYPTIONKEY", "appkey", "MYSQLPWD"],
        *["subscriptionkey", "SECRETKEYBASE", "HTTPAUTH", "basicauth", "passcode", "tokenid", "TOKENVALUE", "APIKEYID"],
    ],
)
def test_names_of_credentials_are_known_by_their_words(name: str) -> None:
    """Words end at punctuation, digits and capital letters; some are written together."""
    assert is_credential_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *[
            "GIT_AUTHOR_NAME",
            "GIT_AUTHOR_EMAIL",
            "KEYBOARD",
            "MONKEY",
            "COMPASS_URL",
            "BYPASS",
            "PASSENGER",
            "authority",
        ],
        *["SURVEYMONKEY_URL", "HOTKEYS", "OLDPWD", "authors", "keyframes", "secretaries", "passive", "trespass"],
        *["TOKENIZERS_PARALLELISM", "TURKEY", "keyboardLayout", "SECRETARY", "MODE", "PATH", ""],
    ],
)
def test_ordinary_names_are_not_taken_for_credentials(name: str) -> None:
    """Their values would be removed from all messages of the process."""
    assert not is_credential_name(name)
    assert MCPServer(stdio=["server"], env={name: "Jane Doe"}).secrets == []


def test_credentials_in_the_query_of_a_url_are_secrets() -> None:
    """Also if their names are written in one word."""
    assert url_secrets("https://host/mcp?appkey=abc&subscriptionkey=def&hotkey=F1&page=2") == ["abc", "def"]


def test_long_command_is_cut() -> None:
    """A script on the command line does not fill an error."""
    assert len(command_text(["sh", "-c", "echo " * 200])) == 200


def test_url_is_shown_without_user_and_query() -> None:
    """Both may hold credentials."""
    assert url_text("https://me:pass@host.example:8443/mcp?token=x#y") == "https://host.example:8443/mcp"
    assert url_text("http://[::1]:9/mcp") == "http://[::1]:9/mcp"


@pytest.mark.parametrize(
    ("server", "address"),
    [
        (MCPServer(name="shop", url="http://me:open-sesame@127.0.0.1:9/mcp?key=open-sesame"), "http://127.0.0.1:9/mcp"),
        (MCPServer(name="shop", stdio=["/no/such/server", "--key", "open-sesame"]), "/no/such/server --key '***'"),
    ],
)
async def test_warning_of_an_unreachable_server_has_its_address(server: MCPServer, address: str) -> None:
    """The reason alone, such as a refused connection, does not say which server to start."""
    agent = Agent("worker", model=ScriptedProvider("Done."), tools=[server])

    async with CrewExecutor(agent) as executor:
        events, result = await run_and_collect(executor)

    assert result.output == "Done."
    [warning] = events_of_type(events, Warned)
    assert f"The MCP server 'shop' ({address}) is not available: " in warning.text
    assert "open-sesame" not in warning.text
