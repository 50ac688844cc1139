"""What horon.launch.run() gives to mpirun; programs_test.py runs functions by it."""

import os
import pathlib
import runpy

import pytest

from horon import launch
from horon.launch import run

TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools"

MPIRUN = """#!/bin/sh
if [ $1 = --version ]; then echo "{version}"; exit; fi
echo "$@" > {line}
echo "$SLURM_OVERLAP" > {line}.overlap
exit 3
"""
OPEN_MPI = "mpirun (Open MPI) 4.1.4"
YIELDS = "--mca mpi_yield_when_idle 1"


@pytest.fixture
def line_of(tmp_path, monkeypatch):
    """The arguments of mpirun up to the program, of a call of run()."""
    def line_of(version=OPEN_MPI, user=1000, **options):
        line = tmp_path / "line"
        mpirun = tmp_path / "mpirun"
        mpirun.write_text(MPIRUN.format(version=version, line=line))
        mpirun.chmod(0o755)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        with pytest.raises(RuntimeError, match="mpirun ended with code 3"):
            run(os.getpid, executable="PYTHON", **options)
        return line.read_text().partition(" PYTHON ")[0]

    of_mpirun = [name for name in os.environ if name.startswith(("OMPI_MCA_", "PRTE_MCA_"))]
    for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE", *of_mpirun):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return line_of


def test_ranks_on_this_host(line_of):
    assert line_of(np=3) == f"-np 3 --host localhost:3 --bind-to none {YIELDS}"
    assert line_of(np=3, user=0) == (
        f"-np 3 --host localhost:3 --allow-run-as-root --bind-to none {YIELDS}")
    assert line_of(np=3, mpi_args="--mca mpi_yield_when_idle 0") == (
        "-np 3 --host localhost:3 --bind-to none --mca mpi_yield_when_idle 0")


def test_a_setting_in_the_environment_stays(line_of, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "0")
    assert line_of(np=3) == "-np 3 --host localhost:3 --bind-to none"


def test_a_list_of_variables_that_mpirun_does_not_take_beside_x(line_of, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mca_base_env_list", "A=1")
    line_of(np=3)
    line_of(np=3, hosts="a:3", version="mpirun (Open MPI) 5.0.7")
    with pytest.raises(ValueError, match="OMPI_MCA_mca_base_env_list: Open MPI 4 takes"):
        line_of(np=3, hosts="a:3")


def test_ranks_on_hosts(line_of, monkeypatch):
    assert line_of(np=3, hosts="a:2,b").startswith("-np 3 -H a:2,b -x ")
    assert line_of(np=3, hosts="a:2,b").endswith(" --bind-to none")
    elsewhere = line_of(np=3, mpi_args="-host a:3")
    assert elsewhere.startswith("-np 3 -x ") and "-x HORON_LAUNCH_TOKEN" in elsewhere
    assert elsewhere.endswith(" --bind-to none -host a:3")
    for name in ("SLURM_JOB_ID", "OMPI_MCA_orte_default_hostfile"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            line = line_of(np=3, user=0)
            assert "-x HORON_LAUNCH_TOKEN" in line and "localhost" not in line
            assert line.endswith(" --allow-run-as-root --bind-to none")


def test_steps_of_mpirun_wait_for_no_other_step_of_slurm(line_of, monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_OVERLAP", raising=False)
    for job, overlap in ((None, ""), ("17", "1")):
        if job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        line_of(np=2)
        assert (tmp_path / "line.overlap").read_text().strip() == overlap


@pytest.mark.parametrize("given", ["--bind-to core", "-bind-to-socket", "--map-by slot:PE=2",
                                   "--map-by slot:nooversubscribe,pe=2", "--cpus-per-rank 2",
                                   "--mca hwloc_base_binding_policy core", "--rankfile f"])
def test_what_binds_ranks_is_left_alone(line_of, given):
    assert line_of(np=2, mpi_args=given) == f"-np 2 --host localhost:2 {YIELDS} {given}"


@pytest.mark.parametrize("variable, value, binds", [
    ("OMPI_MCA_hwloc_base_binding_policy", "core", True),
    ("PRTE_MCA_hwloc_default_binding_policy", "core", True),
    ("OMPI_MCA_rmaps_base_mapping_policy", "slot:PE=2", True),
    ("OMPI_MCA_rmaps_base_mapping_policy", "slot", False),
    ("MY_hwloc_base_binding_policy", "core", False)])
def test_a_variable_that_binds_ranks_is_left_alone(line_of, monkeypatch, variable, value, binds):
    monkeypatch.setenv(variable, value)
    assert ("--bind-to none" in line_of(np=2)) is not binds
    horonrun = runpy.run_path(str(TOOLS / "horonrun_line.py"))
    assert horonrun["binds"]([], {variable: value}) is binds
    assert horonrun["BINDS"] == launch._BINDS


def test_another_mpi_gets_what_is_given(line_of):
    assert line_of("HYDRA build details:", np=2, user=0, mpi_args="-v") == "-np 2 -v"


@pytest.mark.parametrize("wrong, error", [
    ({"num_procs": 4}, TypeError), ({"host": "a:2"}, TypeError),
    ({"host_discovery_script": "./h.sh"}, NotImplementedError),
    ({"min_np": 2}, NotImplementedError),
    ({"hosts": "a:2", "hostfile": "f"}, ValueError), ({"use_gloo": True}, ValueError)])
def test_what_would_start_another_job_is_refused(wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        run(os.getpid, np=2, **wrong)


def test_options_of_horovods_own_launcher_have_no_effect(line_of):
    assert line_of(np=3, ssh_port=22, start_timeout=5) == line_of(np=3)
