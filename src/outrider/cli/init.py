"""`outrider init`: a commented run.toml."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer


def init(path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("run.toml")) -> None:
    """Write a commented run.toml to start from."""
    from outrider.core.errors import InputError
    from outrider.core.files import write_atomically

    if path.exists():
        raise InputError(f"{path} exists already", fix="choose another name, or remove it first")
    write_atomically(path, files("outrider.cli").joinpath("run.toml").read_bytes())
    typer.echo(f"wrote {path}; set [target] path and your prompt files, then: outrider run {path}")
