"""`outrider run`: all stages."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.core.names import STAGES


def run(
    config: Annotated[Path, typer.Argument(help="The run's configuration, as `outrider init` writes it.")] = Path("run.toml"),
    folder: Annotated[Path | None, typer.Option(help="The run folder; by default runs/ and the configuration's name.")] = None,
    until: Annotated[str, typer.Option(help=f"The last stage to run: {', '.join(STAGES)}.")] = STAGES[-1],
) -> None:
    """Run all stages; what is there already and fits is taken, and a killed run continues."""
    from rich.console import Console

    from outrider.core.config import load_config
    from outrider.core.errors import InputError

    if until not in STAGES:
        raise InputError(f"no stage named {until!r}", fix=f"choose one of {', '.join(STAGES)}")
    settings = load_config(config)
    from outrider.core.record import RunFolder
    from outrider.pipeline import Pipeline
    from outrider.report.gather import gather
    from outrider.report.terminal import print_report

    place = RunFolder(folder or Path("runs") / config.stem)
    Pipeline(settings, place, typer.echo).all_stages(until)
    if until == STAGES[-1]:
        print_report(gather(place), Console())
        typer.echo(f"report: {place.path / 'report' / 'report.html'}")
