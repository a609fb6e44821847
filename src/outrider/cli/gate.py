"""`outrider engine gate`: vLLM's list of target types, lifted for launches by others, and put back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.engines.environment import Environment
    from outrider.engines.facts import EngineFacts

app = typer.Typer(help="Lift the list of target types of vLLM before 0.22, without editing a file of it.", no_args_is_help=True)

_Name = Annotated[str | None, typer.Option("--environment", help="The engine's environment, as `engine list` shows it.")]
_Python = Annotated[Path | None, typer.Option("--engine-python", help="The interpreter of an engine that is not on that list.")]


@app.command()
def lift(
    model_type: Annotated[list[str], typer.Option(help="A type as config.json names it; may be given several times.")],
    environment: _Name = None,
    engine_python: _Python = None,
    target: Annotated[Path | None, typer.Option(help="A target's folder, to be told which gates remain for it.")] = None,
) -> None:
    """Let the engine draft for targets of a type that its list lacks; it is asked whether that took effect."""
    from outrider.engines.gates import PLUGIN, is_refused
    from outrider.engines.gates import lift as work

    place, facts = _engine(environment, engine_python)
    remaining = _remaining(place, facts, model_type, target)
    typer.echo(_named(place, facts))
    refused = [name for name in model_type if is_refused(facts, name)]
    for name in model_type:
        if name not in refused:
            typer.echo(f"nothing to lift: {_accepts(facts, name)}")
    if refused and facts.target_types:
        for name, answer in work(place, refused, facts.target_types.methods[0]).items():
            typer.echo(f"before   {answer.before or f'{name} was accepted'}")
            typer.echo(f"after    {name} is accepted")
        typer.echo(f"lifted   by {place.packages / PLUGIN}, in every process of the engine, without a change to its files")
        typer.echo(f"         where VLLM_PLUGINS is set, it must name {PLUGIN}; `outrider engine gate restore` takes it out")
    typer.echo("\n".join(remaining))


@app.command()
def restore(environment: _Name = None, engine_python: _Python = None) -> None:
    """Take out what `lift` has put in; nothing of it stays."""
    from outrider.engines.gates import restore as work

    place, _ = _engine(environment, engine_python)
    lifted = work(place)
    if lifted is None:
        typer.echo(f"nothing was lifted in {place.packages}")
    else:
        typer.echo(f"restored {place.packages}; lifted were {', '.join(lifted) or 'no types yet'}")


@app.command()
def status(environment: _Name = None, engine_python: _Python = None) -> None:
    """What is lifted, and where."""
    from outrider.engines.gates import PLUGIN, lifted_types

    place, facts = _engine(environment, engine_python)
    listed, lifted = facts.target_types, lifted_types(place)
    typer.echo(_named(place, facts))
    typer.echo(f"list     {', '.join(listed.names) or 'could not be read'}   ({listed.evidence})" if listed else "list     none")
    typer.echo(f"lifted   {', '.join(lifted)}   ({place.packages / PLUGIN})" if lifted else "lifted   nothing")


def _engine(environment: str | None, python: Path | None) -> "tuple[Environment, EngineFacts]":
    """The vLLM that is meant, and its facts as they are without the plug-in."""
    from outrider.engines.environments import environment_for
    from outrider.engines.serving import engine_named

    engine = engine_named("vllm")
    place = environment_for(engine, environment, python)
    return place, engine.facts(place)


def _named(place: "Environment", facts: "EngineFacts") -> str:
    return f"engine   {facts.engine} {facts.version}, {place.python}"


def _accepts(facts: "EngineFacts", model_type: str) -> str:
    name = f"{facts.engine} {facts.version}"
    return f"{name} accepts {model_type} as it is" if facts.target_types else f"{name} has no list of target types"


def _remaining(place: "Environment", facts: "EngineFacts", types: list[str], target: Path | None) -> list[str]:
    """The list is the first gate only: those behind it are other facts, of the target's class and not of its type."""
    from outrider.engines.gates import with_lifted
    from outrider.preflight.planned import PLANS
    from outrider.preflight.stage import preflight

    if target is None:
        classes = len(set(facts.targets.values()))
        return [
            f"remains  the target's class must hand out aux states: {len(facts.interface_classes or ())} of {classes} classes do",
            "         --target DIR tells whether that of a target does, and what else would fail for it",
        ]
    result = preflight(target, PLANS["eagle3"](target), with_lifted(facts, place, types))
    failed = [finding for finding in result.findings if finding.verdict == "fail"]
    if not failed:
        return [f"remains  nothing that preflight can tell of an EAGLE-3 drafter for {target}"]
    return [line for finding in failed for line in (f"remains  {finding.id} would still fail: {finding.title}", f"         {finding.fix}")]
