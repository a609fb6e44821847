"""`outrider demo`: the whole job on the embedded default."""

from pathlib import Path
from typing import Annotated

import typer


def demo(folder: Annotated[Path, typer.Argument(help="Where the demo works; a killed demo continues there.")] = Path("demo-run")) -> None:
    """From a real 135M-parameter target to a measured drafter, on two CPU cores, in minutes."""
    from outrider.demo.job import run_demo

    run_demo(folder, typer.echo)
