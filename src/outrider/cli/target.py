"""`outrider target`: bring a target in."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Target models.", no_args_is_help=True)


@app.callback()
def _target() -> None:
    """Keeps `import` a command of its own."""


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A GGUF file, or a Hugging Face folder.")],
    folder: Annotated[Path, typer.Argument(help="Where the target goes.")],
) -> None:
    """Turn a GGUF file or a Hugging Face folder into a plain safetensors folder with tokenizer and chat template."""
    from outrider.targets.importing import import_target

    target = import_target(source, folder)
    typer.echo(
        f"{folder}: {target.config['model_type']}, {target.num_layers} layers, hidden {target.hidden_size}, vocabulary {target.vocab_size}"
    )
