"""What may come in: one function a rule, and a validator that gathers everything they find."""

from crew.validation.message_import import import_messages
from crew.validation.validator import InputValidator

__all__ = [
    "InputValidator",
    "import_messages",
]
