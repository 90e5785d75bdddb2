"""Secrets: the registry, scrubbing of values, redaction of key-like text. Internal."""
