"""`outrider serve`: the reference engine in the foreground."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder; plain decoding if not given.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed a step.")] = 3,
    engine: str = "reference",
    dtype: str = "bfloat16",
    port: int = 8000,
    max_batch: Annotated[int, typer.Option(min=1)] = 32,
    log: Annotated[Path, typer.Option(help="The engine's log.")] = Path("server.log"),
) -> None:
    """Serve a target on loopback, OpenAI-compatible, with a drafter beside it; Ctrl-C ends it."""
    import time

    from outrider.cli.choices import dtype_named
    from outrider.core.errors import EngineFailed
    from outrider.engines.engine import ServeSpec
    from outrider.engines.serving import engine_named, serving
    from outrider.targets.folder import TargetFolder

    TargetFolder.open(target)
    spec = ServeSpec(target, drafter, num_speculative_tokens, dtype_named(dtype), port, max_batch)
    with serving(engine_named(engine), spec, log) as (url, process):
        typer.echo(f"{url} is ready; log: {log}")
        while process.exit_code is None:
            time.sleep(0.5)
    raise EngineFailed(f"the engine ended with exit code {process.exit_code}", evidence=process.tail(), fix=f"see {log}")
