"""One whole job, run once and never killed, for the tests of this folder."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.jobs import Job, run_job, write_job

_Straight = tuple[Job, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def straight_run(tmp_path_factory: pytest.TempPathFactory) -> _Straight:
    """The job after one straight run of all stages, and what the command said. Copied, not changed, by tests."""
    job = write_job(tmp_path_factory.mktemp("straight"))
    done = run_job(job)
    assert done.returncode == 0, done.stderr
    return job, done


@pytest.fixture(scope="session")
def straight(straight_run: _Straight) -> Job:
    """The job after its straight run."""
    return straight_run[0]


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Job], Job]:
    """Makes a copy of a job that a test may change."""

    def copied(job: Job) -> Job:
        shutil.copytree(job.folder, tmp_path / "job")
        return Job(tmp_path / "job")

    return copied
