"""`outrider synthesize`: answers of a served target."""

from pathlib import Path
from typing import Annotated

import typer


def synthesize(
    target: Annotated[Path, typer.Option(help="The target's folder, for its tokenizer and chat template.")],
    out: Annotated[Path, typer.Option(help="Folder for answers.jsonl; a killed run continues in it.")],
    prompts: Annotated[list[Path] | None, typer.Option(help="A JSONL file of prompts; may be given several times.")] = None,
    self_prompts: Annotated[int, typer.Option(min=0, help="User turns that the target writes itself.")] = 0,
    server: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server; the engine is started if not given.")] = None,
    engine: str = "reference",
    environment: Annotated[str | None, typer.Option(help="The engine's environment, as `engine list` shows it.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1)] = 512,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1)] = 32,
    seed: int = 0,
    dtype: Annotated[str, typer.Option(help="Of the target, in an engine that is started.")] = "bfloat16",
) -> None:
    """Let the target answer prompts, or prompts of its own."""
    import asyncio
    from contextlib import nullcontext

    from outrider.cli.choices import dtype_named
    from outrider.engines.engine import ServeSpec
    from outrider.engines.environments import environment_for
    from outrider.engines.serving import engine_named, running
    from outrider.synthesize.answers import Sampling
    from outrider.synthesize.stage import Prompts, answer_training
    from outrider.targets.folder import TargetFolder

    folder = TargetFolder.open(target)
    spec = ServeSpec(target.resolve(), None, 0, dtype_named(dtype), port=0, max_batch=concurrency)
    plugin = engine_named(engine)
    with nullcontext(server) if server else running(plugin, environment_for(plugin, environment, None), spec, out / "server.log") as url:
        wanted = Prompts(prompts or [], None, self_prompts)
        sampling = Sampling(max_tokens, temperature, concurrency, seed)
        made, _ = asyncio.run(answer_training(url, folder, wanted, sampling, out))
    typer.echo(
        f"{out / made.file.path}: {made.num_rows} rows, {made.num_answer_tokens} answer tokens, {made.num_distinct_answers} distinct, "
        f"{made.num_finished} finished by themselves, {made.num_rejected_prompts} self-prompts left out"
    )
