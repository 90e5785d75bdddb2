"""Fakes, strategies and small functions that tests of several packages share; one module a subject."""
