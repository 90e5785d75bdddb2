"""Recognizes the names of secret values: of fields, headers, variables, options and parameters."""

from __future__ import annotations

import re

SECRET_NAME_PARTS = (
    r"pass(?:word|wd|phrase|code)|secret(?!ar(?:y|ies))|api[_-]?key|access[_-]?key|private[_-]?key|authorization"
    r"|credentials?|cookie"
)
"""A regular expression for the parts of names that are never harmless; letters of both cases."""

_SENSITIVE_NAME = re.compile(
    rf"(?:{SECRET_NAME_PARTS}|(?:^|[_-])(?:auth|access|refresh|bearer|api|id|session)?_?token$)", re.IGNORECASE
)

_WORD_END = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CREDENTIAL_WORD = re.compile(
    # Also at the end of a word, as in DBPASS, MASTERKEY and AUTHTOKEN.
    r"(?:[a-z]*(?:key|pass|pwd|auth|token)(?:id|value)?|authentication|bearer)s?",
    re.IGNORECASE,
)
_HARMLESS_WORD = re.compile(
    r"(?:(?:don|flun|hoc|hot|joc|lac|mon|surveymon|tur|whis)key|(?:by|com|encom|over|sur|tres|under)pass|oldpwd)s?",
    re.IGNORECASE,
)


def is_sensitive_name(name: str) -> bool:
    """Whether values with this name are secret in data of any kind, such as `password`; not `key` and `max_tokens`."""
    return _SENSITIVE_NAME.search(name) is not None


def is_credential_name(name: str) -> bool:
    """Whether a header, variable, option or parameter of this name holds a credential.

    Its words may be joined: API_KEY, apiKey and MASTERKEY, but neither KEYBOARD, MONKEY nor GIT_AUTHOR_NAME.
    """
    return is_sensitive_name(name) or any(map(_is_credential_word, _WORD_END.split(name)))


def _is_credential_word(word: str) -> bool:
    return _CREDENTIAL_WORD.fullmatch(word) is not None and _HARMLESS_WORD.fullmatch(word) is None
