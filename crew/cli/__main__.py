"""Runs the command `crew` as `python -m crew.cli`."""

from __future__ import annotations

import sys

from crew.cli import main

sys.exit(main())
