"""`outrider export`: the folder that engines load."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[Path, typer.Option(help="checkpoint.pt of `outrider train`.")],
    target: Annotated[Path, typer.Option(help="The target it was trained for.")],
    out: Annotated[Path, typer.Option(help="The drafter's folder.")],
    layer_names: Annotated[str, typer.Option(help="midlayer (read by all), or layers.0 (skipped by SGLang before 0.5.12).")] = "midlayer",
    dtype: str = "bfloat16",
    engine: Annotated[
        list[str] | None, typer.Option(help="Who must be able to load it, e.g. vllm==0.25.0; may be given several times.")
    ] = None,
) -> None:
    """Write a trained drafter as EAGLE-3 for vLLM, SGLang and the reference engine, and read it back."""
    from outrider.cli.choices import dtype_named
    from outrider.core.errors import InputError
    from outrider.export.stage import export as work
    from outrider.targets.folder import TargetFolder

    if layer_names not in ("midlayer", "layers.0"):
        raise InputError(f"no layer names {layer_names!r}", fix="choose midlayer or layers.0")
    if out.exists() and not (out / "config.json").exists() and any(out.iterdir()):
        raise InputError(f"{out} holds something else", fix="choose another folder")
    made = work(checkpoint, TargetFolder.open(target), out, layer_names, dtype_named(dtype), engine or [])
    typer.echo(f"{out}: {made.weights.num_bytes / 1e6:.1f} MB, for {', '.join(made.engines)}; read back and equal")
