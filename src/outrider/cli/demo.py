"""`outrider demo`: the whole job on a real target that a package carries."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Where the demo works; a killed demo continues there.")] = Path("demo-run"),
    engine: Annotated[str, typer.Option(help="reference, or vllm where `outrider engine add` has installed one.")] = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
) -> None:
    """From a real 135M-parameter target to a measured drafter, on two CPU cores, in minutes."""
    from outrider.demo.job import run_demo

    run_demo(folder, engine, environment, typer.echo)
