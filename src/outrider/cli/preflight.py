"""`outrider preflight`: whether a target, a drafter and an engine fit, before anything is loaded or trained."""

import json
from pathlib import Path
from typing import Annotated

import typer


def preflight(
    target: Annotated[Path, typer.Option(help="The target's folder; config.json is enough.")],
    drafter: Annotated[str, typer.Option(help="The drafter's folder, or eagle3 or eagle3-mla for one that is to be trained.")],
    engine: Annotated[str | None, typer.Option(help="NAME==VERSION, or NAME for an installed one. [default: reference]")] = None,
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    engine_python: Annotated[Path | None, typer.Option(help="The interpreter of an engine that is not on that list.")] = None,
    engine_image: Annotated[str | None, typer.Option(help="A container image that holds the engine.")] = None,
    serve_args: Annotated[str, typer.Option(help="The engine's own arguments, as one string.")] = "",
    method: Annotated[str | None, typer.Option(help="The method of speculation, if not the one that fits the drafter.")] = None,
    all_versions: Annotated[bool, typer.Option("--matrix", help="Every known version of every engine, or of --engine.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail, too, where something could not be checked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Check that this version of the engine would serve the target with the drafter; seconds, no GPU, nothing loaded."""
    from rich.console import Console

    import outrider.engines as engines
    from outrider.core.errors import InputError
    from outrider.core.plugins import plugin_ids
    from outrider.engines.asked import asked, every_version_of
    from outrider.preflight.matrix import matrix
    from outrider.preflight.own_verdict import own_verdict
    from outrider.preflight.planned import PLANS
    from outrider.preflight.serve_args import split
    from outrider.preflight.stage import judged, subject_of, with_finding
    from outrider.preflight.terminal import print_matrix, print_preflight

    plan = None if Path(drafter).is_dir() else PLANS.get(drafter)
    meant_drafter = plan(target) if plan else Path(drafter)
    arguments = split(serve_args)
    if all_versions:
        if arguments and not engine:
            raise InputError("serve arguments are those of one engine", fix="name it: --engine vllm --matrix")
        rows = matrix(target, meant_drafter, [every_version_of(engine).id] if engine else plugin_ids(engines), arguments, method)
        if as_json:
            typer.echo(json.dumps([row.model_dump() for row in rows], indent=2))
        else:
            print_matrix(rows, Console(soft_wrap=True))
        return
    meant = asked(engine or "reference", environment, engine_python, engine_image)
    subject = subject_of(target, meant_drafter, meant.facts, arguments, method, meant.standing)
    result = judged(subject)
    if meant.environment and not meant.engine.built_in:
        result = with_finding(result, own_verdict(subject, meant.environment, arguments))
    if as_json:
        # in ASCII: a path may hold bytes that are no text
        typer.echo(json.dumps(result.model_dump(), indent=2))
    else:
        print_preflight(result, Console(soft_wrap=True))
    verdicts = {finding.verdict for finding in result.findings}
    if "fail" in verdicts or (strict and "unknown" in verdicts):
        raise typer.Exit(1)
