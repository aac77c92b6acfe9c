"""The program that `child.run` starts: one job in a process of its own, run by path.

It imports nothing from the package, so that it works wherever the package lies, and it dies with
the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that happens (Linux only)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call above
        sys.exit("the parent process has ended")


def pip(scratch: str, *arguments: str) -> None:
    """`python -m pip` with its temporary files below `scratch`."""
    tempfile.tempdir = scratch
    sys.argv = ["pip", *arguments]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def openvino_ir(gguf: str) -> None:
    """Write the OpenVINO IR of a model and of its tokenizer beside the GGUF file.

    Property `enable_save_ov_model`: openvino.genai pull request 2218 and its release notes. The
    files are always called openvino_model, openvino_tokenizer and openvino_detokenizer.
    """
    from openvino_genai import ContinuousBatchingPipeline, SchedulerConfig

    save = {"enable_save_ov_model": True}
    ContinuousBatchingPipeline(gguf, SchedulerConfig(), "CPU", save, save)


JOBS: dict[str, Callable[..., None]] = {"pip": pip, "openvino_ir": openvino_ir}


def main() -> None:
    """`child_jobs.py <parent pid> <job> <arguments>`."""
    # The modules beside this file must not be found as top-level names.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    parent_pid, job, *arguments = sys.argv[1:]
    die_with_parent(int(parent_pid))
    JOBS[job](*arguments)


if __name__ == "__main__":
    main()
