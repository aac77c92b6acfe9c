"""The run directory: programs are linked there and logs written, so it is this user's alone."""

from __future__ import annotations

import os
from pathlib import Path

from cog_triton.errors import DeploymentError
from cog_triton.settings import Settings


def prepare(settings: Settings) -> Path:
    """Make the run directory, or take it over; mode 0700, and so is what the default lies in.

    The default is in the machine's temporary directory, where anybody can make the name
    first: a symbolic link or another owner is a DeploymentError, and so is a directory that
    cannot be made.
    """
    directory = settings.resolved_run_dir
    if settings.run_dir is None:
        make_private(directory.parent)
    make_private(directory)
    return directory


def make_private(directory: Path) -> None:
    """Make one directory 0700; of one that exists, check the owner and close it to others."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            if directory.is_symlink():
                raise DeploymentError(
                    f"The run directory {directory} is a symbolic link, which could lead anywhere; "
                    "remove it or set another run_dir."
                ) from None
        # What was opened is what is looked at: a link put here meanwhile is not followed.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            owner = os.fstat(opened).st_uid
            if owner != os.getuid():
                raise DeploymentError(
                    f"The run directory {directory} belongs to user {owner}, not to this one "
                    f"({os.getuid()}); remove it or set another run_dir."
                )
            os.fchmod(opened, 0o700)
        finally:
            os.close(opened)
    except OSError as err:
        raise DeploymentError(f"The run directory {directory} cannot be used: {err}") from err
