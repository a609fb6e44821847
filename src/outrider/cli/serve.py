"""`outrider serve`: an engine in the foreground, watched."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder; plain decoding if not given.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed a step.")] = 3,
    engine: str = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    dtype: str = "bfloat16",
    port: int = 8000,
    max_batch: Annotated[int, typer.Option(min=1)] = 32,
    log: Annotated[Path, typer.Option(help="The engine's log.")] = Path("server.log"),
    engine_args: Annotated[str, typer.Option(help="Further arguments of the engine's own command, as one string.")] = "",
    lift_gate: Annotated[
        list[str] | None, typer.Option(help="A model_type to draft for although vLLM's list lacks it; may be given several times.")
    ] = None,
) -> None:
    """Serve a target on loopback, OpenAI-compatible, with a drafter beside it; ended by Ctrl-C or, with the cause, by a failure."""

    from outrider.cli.choices import dtype_named, extra_arguments
    from outrider.engines.engine import ServeSpec
    from outrider.engines.environments import environment_for
    from outrider.engines.serving import engine_named, serving
    from outrider.targets.folder import TargetFolder

    TargetFolder.open(target)
    plugin = engine_named(engine)
    place = environment_for(plugin, environment, None)
    drafter_folder = drafter.resolve() if drafter else None
    extra = extra_arguments(engine_args)
    spec = ServeSpec(
        *(target.resolve(), drafter_folder, num_speculative_tokens, dtype_named(dtype), port, max_batch),
        extra_args=extra,
        lift_target_types=tuple(lift_gate or ()),
    )
    typer.echo(f"starting {plugin.id} {place.version}; log: {log}")
    with serving(plugin, place, spec, log) as served:
        typer.echo(f"{served.url} is ready")
        while (failure := served.watch.failure(timeout_s=3600)) is None:
            pass
        raise failure
