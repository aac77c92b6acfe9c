"""Which variables of a parent's MPI or Slurm job are removed, and which stay."""

from __future__ import annotations

import pytest

from cog_triton.runtimes.mpi_environment import leave_job

JOB = [
    # Those that TensorRT-LLM's Triton model llmapi removes by name …
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_NODE_RANK",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_FIRST_RANKS",
    "OMPI_APP_CTX_NUM_PROCS",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMIX_SERVER_URI",
    "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI3",
    "PMIX_SERVER_TMPDIR",
    "PMIX_SYSTEM_TMPDIR",
    "PMIX_SECURITY_MODE",
    "PMIX_GDS_MODULE",
    "PMIX_BFROPS_MODULE",
    "PMIX_PTL_MODULE",
    "PMIX_VERSION",
    "PMIX_HOSTNAME",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "PMI_SPAWNED",
    "PMI_APPNUM",
    "OMPI_MCA_orte_hnp_uri",
    "ORTE_SCHIZO_DETECTION",
    # … those that its launcher reads the rank from, and what else mpirun 4 sets for a job.
    "PMI_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_NODELIST",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_pmix",
    "MPI_LOCALRANKID",
]
OTHERS = [
    "OMPI_MCA_btl",
    "OMPI_MCA_btl_tcp_if_include",
    "PMIX_MCA_gds",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "OPAL_PREFIX",
    "UCX_TLS",
    "CUDA_VISIBLE_DEVICES",
    "TLLM_SPAWN_PROXY_PROCESS",
    "PATH",
]


@pytest.mark.parametrize("name", JOB)
def test_a_variable_of_the_job_goes(name: str) -> None:
    """It is removed, and its name given back."""
    environ = {name: "1"}
    assert leave_job(environ) == [name]
    assert environ == {}


@pytest.mark.parametrize("name", OTHERS)
def test_configuration_stays(name: str) -> None:
    """What a person set, or what belongs to something else, is left alone."""
    environ = {name: "1"}
    assert leave_job(environ) == []
    assert environ == {name: "1"}
