"""Types of command line arguments."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A count of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def not_negative(text: str) -> int:
    """A count, which may be 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value
