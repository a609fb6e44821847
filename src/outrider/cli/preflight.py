"""`outrider preflight`: whether a target, a drafter and an engine fit, before anything is loaded or trained."""

from pathlib import Path
from typing import Annotated

import typer


def preflight(
    target: Annotated[Path, typer.Option(help="The target's folder; config.json is enough.")],
    drafter: Annotated[str, typer.Option(help="The drafter's folder, or eagle3 for one that is to be trained.")],
    engine: str = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    engine_python: Annotated[Path | None, typer.Option(help="The interpreter of an engine that is not on that list.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail, too, where something could not be checked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Check that this version of the engine would serve the target with the drafter; seconds, no GPU, nothing loaded."""
    from rich.console import Console

    from outrider.engines.environments import environment_for
    from outrider.engines.serving import engine_named
    from outrider.preflight.planned import planned_eagle3
    from outrider.preflight.stage import preflight as work
    from outrider.preflight.terminal import print_preflight

    plugin = engine_named(engine)
    facts = plugin.facts(environment_for(plugin, environment, engine_python))
    folder = Path(drafter)
    is_planned = drafter == "eagle3" and not folder.is_dir()
    result = work(target, planned_eagle3(target) if is_planned else folder, facts)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        print_preflight(result, Console(soft_wrap=True))
    verdicts = {finding.verdict for finding in result.findings}
    if "fail" in verdicts or (strict and "unknown" in verdicts):
        raise typer.Exit(1)
