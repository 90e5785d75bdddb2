"""Validates input: one function per rule, and a validator that collects all violations."""

from crew.validation.message_import import import_messages
from crew.validation.validator import InputValidator

__all__ = [
    "InputValidator",
    "import_messages",
]
