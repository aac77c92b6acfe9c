"""The variables of an MPI or Slurm job that a process must not pass on when it starts its own.

TensorRT-LLM's LLM API starts its ranks with MPI. A process that was itself started by mpirun
or srun inherits that job's identity; MPI then takes it for a rank of a job that it does not
belong to, and hangs or aborts. What is only configuration stays: a site may need it.

Source: TensorRT-LLM's Triton model `llmapi` (1/model.py) removes the job's variables by name,
and its wrapper `trtllm-llmapi-launch` removes whole prefixes, Slurm's among them.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

JOB_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "SLURM_", "MPI_LOCAL")

CONFIGURATION_PREFIXES = ("OMPI_MCA_", "PMIX_MCA_", "OMPI_ALLOW_RUN_AS_ROOT")
"""Inside JOB_PREFIXES, but set by people: which network to use, whether root may run MPI."""

JOB_STATE_PREFIXES = (
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess",
    "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir",
)
"""Inside CONFIGURATION_PREFIXES, but set by mpirun for the processes of one job."""


def job_variables(names: Iterable[str]) -> list[str]:
    """Those of `names` that tell a process which MPI job it belongs to, sorted."""
    return sorted(name for name in names if _belongs_to_job(name))


def leave_job(environ: MutableMapping[str, str]) -> list[str]:
    """Remove the job's variables from `environ`; the names that were removed."""
    removed = job_variables(environ)
    for name in removed:
        del environ[name]
    return removed


def _belongs_to_job(name: str) -> bool:
    if name.startswith(JOB_STATE_PREFIXES):
        return True
    return name.startswith(JOB_PREFIXES) and not name.startswith(CONFIGURATION_PREFIXES)
