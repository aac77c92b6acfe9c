"""The error of the measuring commands: they are no part of the server, whose errors have codes."""

from __future__ import annotations


class CannotRun(Exception):
    """Nothing can be measured; the text says why and what to do about it, in one line."""
