"""A stand-in for tensorrt_llm 1.1 that needs no GPU: the LLM API as far as this project uses it.

Names, types and defaults are generated from the contract; behaviour is written by hand after
the same facts. Like the real package it cannot be imported inside another MPI job.
"""

from __future__ import annotations

import os

from .contract import SamplingParams
from .llm import LLM

__version__ = "1.1.0"
__all__ = ["LLM", "SamplingParams"]

if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_RANK" in os.environ:
    raise RuntimeError("MPI_Init: this process is no rank of the job in its environment")
