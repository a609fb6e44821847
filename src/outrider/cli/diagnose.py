"""`outrider diagnose`: does the engine accept what the drafter's own numbers allow?"""

from pathlib import Path
from typing import Annotated

import typer

_EXIT_CODES = {"integration": 1, "invalid": 4}


def diagnose(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    drafter: Annotated[Path, typer.Option(help="The sound folder of the drafter, as it was trained, whatever was served.")],
    measured: Annotated[Path, typer.Option(help="The folder that `outrider measure` has made.")],
    out: Annotated[Path | None, typer.Option(help="Folder for replay.json and diagnose.json; by default the measurement's.")] = None,
    dtype: Annotated[str, typer.Option(help="In which the target computes its states; best the engine's.")] = "float32",
) -> None:
    """Replay the drafter on the answers of a measurement: a fault of the training, of the integration, or none."""
    from rich.console import Console

    from outrider.cli.choices import dtype_named
    from outrider.core.errors import InputError
    from outrider.core.files import file_digest
    from outrider.core.record import RunFolder
    from outrider.core.results import DiagnoseResult, MeasureResult, ReplayResult
    from outrider.diagnose.stage import diagnose as verdict
    from outrider.measure.stage import REPLIES_FILE
    from outrider.report.terminal import print_diagnosis, print_set_diagnoses
    from outrider.report.verdict import judge
    from outrider.targets.folder import TargetFolder

    folder, replies = TargetFolder.open(target), measured / "measure" / REPLIES_FILE
    result = RunFolder(measured).result("measure", MeasureResult)
    if not replies.is_file():
        raise InputError("the measurement's replies are missing", evidence=str(replies), fix="measure again into a folder of its own")

    def replay(place: Path) -> ReplayResult:
        from outrider.replaying import replay_answers

        return replay_answers(folder, drafter, measured, place, dtype_named(dtype))

    inputs = {
        "target": folder.digest,
        "drafter": [file_digest(drafter / file) for file in ("model.safetensors", "config.json")],
        "measurement": [file_digest(measured / "measure.json"), file_digest(replies)],
        "dtype": dtype_named(dtype),
    }
    run = RunFolder(out or measured)
    with run.locked():
        replayed, _ = run.stage("replay", inputs, ReplayResult, replay)
        sides = {"measure": file_digest(measured / "measure.json"), "replay": file_digest(run.path / "replay.json")}
        found, _ = run.stage("diagnose", sides, DiagnoseResult, lambda _: verdict(result, replayed))
    typer.echo(judge(result).sentence)
    print_diagnosis(found, Console())
    if len(found.sets) > 1:
        print_set_diagnoses(found, Console())
    typer.echo(f"with its numbers: {run.path / 'diagnose.json'}")
    raise typer.Exit(_EXIT_CODES.get(found.cause, 0))
