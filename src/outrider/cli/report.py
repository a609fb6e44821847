"""`outrider report`: a run's results."""

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="The run folder.")]) -> None:
    """Print a run's results and write its HTML page."""
    from rich.console import Console

    from outrider.core.errors import InputError
    from outrider.core.record import RunFolder
    from outrider.report.gather import gather
    from outrider.report.stage import report as work
    from outrider.report.terminal import print_report

    if not (run / "run.json").is_file():
        raise InputError(f"{run} is not a run folder", evidence="no run.json", fix="name a folder that `outrider run` has made")
    folder, page = RunFolder(run), run / "report" / "report.html"
    work(folder, page)
    print_report(gather(folder), Console())
    typer.echo(f"report: {page}")
