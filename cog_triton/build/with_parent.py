"""The program through which `tool.run` starts another: that one dies when the parent does.

`with_parent.py <parent pid> <program> <arguments>`; it imports nothing from the package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent_pid):  # it ended before the call above
            sys.exit("the parent process has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
