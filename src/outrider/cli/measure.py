"""`outrider measure`: with and without the drafter."""

from pathlib import Path
from typing import Annotated

import typer


def measure(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    prompts: Annotated[list[str], typer.Option(help="FILE or NAME=FILE; may be given several times, the workload first.")],
    out: Annotated[Path, typer.Option(help="Folder for measure.json; a killed run continues in it.")],
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder; both servers are then started.")] = None,
    plain_server: Annotated[str | None, typer.Option(help="URL of a running server without a drafter.")] = None,
    drafted_server: Annotated[str | None, typer.Option(help="URL of a running server with one.")] = None,
    engine: str = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    dtype: str = "float32",
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each file.")] = 80,
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed a step.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1)] = 1,
    engine_args: Annotated[str, typer.Option(help="Further arguments of the engine's own command, as one string.")] = "",
) -> None:
    """Ask the same prompts with and without the drafter; acceptance, tokens/s and speedup with intervals."""

    from rich.console import Console

    from outrider.cli.choices import dtype_named, named_paths
    from outrider.core.errors import InputError
    from outrider.core.files import file_digest
    from outrider.core.prompts import first_turns, read_prompts
    from outrider.core.record import RunFolder
    from outrider.core.results import MeasureResult
    from outrider.engines.engine import ServeSpec
    from outrider.engines.environments import environment_for
    from outrider.engines.serving import engine_named
    from outrider.measure.arms import at_urls, started
    from outrider.measure.stage import Terms
    from outrider.measure.stage import measure as measure_arms
    from outrider.preflight.serve_args import split
    from outrider.report.gather import gather
    from outrider.report.terminal import print_report
    from outrider.targets.folder import TargetFolder

    if (drafter is None) == (plain_server is None) or (plain_server is None) != (drafted_server is None):
        raise InputError("measure needs two arms", fix="give --drafter, or both --plain-server and --drafted-server")
    if drafter and not drafter.is_dir():
        raise InputError(f"no drafter at {drafter}", evidence="not a folder", fix="check the path")
    served = drafter.resolve() if drafter else None
    folder, plugin, extra = TargetFolder.open(target), engine_named(engine), tuple(split(engine_args))
    place = environment_for(plugin, environment, None) if drafter else None
    version = place.version if place else f"at {drafted_server}"
    sets = {name: first_turns(read_prompts(Path(path)), num_prompts) for name, path in named_paths(prompts).items()}
    terms = Terms(max_tokens, temperature, concurrency, num_speculative_tokens)

    def work(made: Path) -> MeasureResult:
        arms = at_urls(str(plain_server), str(drafted_server))
        if place:
            spec = ServeSpec(target.resolve(), served, num_speculative_tokens, dtype, 0, concurrency, None, extra)
            arms = started(plugin, place, spec, made)
        return measure_arms(plugin, version, arms, folder, sets, terms, made)

    inputs = {
        "target": folder.digest,
        "drafter": [file_digest(path) for path in sorted(drafter.glob("*.*"))] if drafter else [plain_server, drafted_server],
        "engine": [engine, place.distribution if place else None, version, dtype_named(dtype), list(extra)],
        "prompts": {name: file_digest(Path(path)) for name, path in named_paths(prompts).items()},
        "terms": [max_tokens, temperature, concurrency, num_speculative_tokens, num_prompts],
    }
    run = RunFolder(out)
    with run.locked():
        run.stage("measure", inputs, MeasureResult, work)
    print_report(gather(run), Console())
    typer.echo(f"raw counters: {out / 'measure.json'}")
