"""Twenty kills at random moments of the whole job, spread over the stages; each is then run to its end and compared."""

import platform
import random
import shutil
import tempfile
import time
from pathlib import Path

from outrider.core.names import STAGES
from pipeline.jobs import Job, Kill, differences, kill_within, nothing_left, run_job, write_job

NUM_KILLS = 20

_INTRODUCTION = """# Kills at random moments

`make proofs` wrote this page. The job is the small one of `tests/pipeline/jobs.py`, run through the command line. For each row the
command was killed (SIGKILL) a random time after the stage had begun; the stages before it were finished, those behind it were not.
Then the same command ran to its end. "equal" means: every answers file, store and exported folder has the very bytes of a run that
was never killed; tensors, optimiser and step of the training checkpoint are equal bit for bit; no answer, optimiser step or measured
prompt is there twice; all counts are equal; and after the kill no process of the run was left.

Seed {seed}, {system}, {seconds:.0f} s in all. {num_equal} of {num} equal.
{num_hit} kills met the stage at work, the others came as it had ended.

| stage | seconds after its beginning | met it at work | result |
|---|---|---|---|
"""


def main(out_folder: Path) -> None:
    """Write `out_folder`/kills.md; ends with an error if a run differs."""
    seed, began = time.time_ns() % 1_000_000, time.monotonic()
    rng = random.Random(seed)
    rows: list[tuple[Kill, str]] = []
    with tempfile.TemporaryDirectory(prefix="outrider-kills-") as place:
        straight = write_job(Path(place) / "straight")
        done = run_job(straight)
        if done.returncode:
            raise RuntimeError(f"the run that is not killed failed: {done.stderr}")
        for number in range(NUM_KILLS):
            stage = STAGES[number % len(STAGES)]
            rows.append(_killed_once(straight, Path(place) / f"killed-{number}", stage, rng))
            print(f"{number + 1}/{NUM_KILLS}: {rows[-1]}", flush=True)
    is_equal = [result == "equal" for _, result in rows]
    introduction = _INTRODUCTION.format(
        seed=seed,
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        seconds=time.monotonic() - began,
        num_equal=sum(is_equal),
        num=len(rows),
        num_hit=sum(kill.hit for kill, _ in rows),
    )
    lines = [f"| {kill.stage} | {kill.delay_s:.3f} | {'yes' if kill.hit else 'no'} | {result} |\n" for kill, result in rows]
    (out_folder / "kills.md").write_text(introduction + "".join(lines), encoding="utf-8")
    if not all(is_equal):
        raise SystemExit(f"{len(rows) - sum(is_equal)} of {len(rows)} killed runs differ: see {out_folder / 'kills.md'}")


def _killed_once(straight: Job, folder: Path, stage: str, rng: random.Random) -> tuple[Kill, str]:
    """A copy of the finished run without this stage and those behind it; killed within it, and run to its end."""
    shutil.copytree(straight.folder, folder)
    job = Job(folder)
    for later in STAGES[STAGES.index(stage) :]:
        shutil.rmtree(job.run / later)
        (job.run / f"{later}.json").unlink()
    kill = kill_within(job, stage, rng)
    if not nothing_left(folder):
        return kill, "a process was left"
    done = run_job(job)
    if done.returncode:
        return kill, f"exit code {done.returncode}: {done.stderr.splitlines()[-1] if done.stderr else ''}"
    return kill, "; ".join(differences(job.run, straight.run)) or "equal"
