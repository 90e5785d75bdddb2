"""What may come in: one function a rule, and a validator that gathers everything they find."""

from crew.validation.reading import read_history
from crew.validation.validator import InputValidator

__all__ = ["InputValidator", "read_history"]
