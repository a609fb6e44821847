"""`outrider train`: a drafter from a store."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    target: Annotated[Path, typer.Option(help="The target's folder: only its embedding and head are read.")],
    store: Annotated[Path, typer.Option(help="A store of `outrider extract`.")],
    out: Annotated[Path, typer.Option(help="Folder for checkpoint.pt and metrics.jsonl; a killed run continues in it.")],
    draft_vocab_size: int = 32000,
    ttt_steps: int = 4,
    epochs: int = 3,
    max_steps: Annotated[int | None, typer.Option(help="End earlier.")] = None,
    batch_tokens: int = 4096,
    learning_rate: float = 5e-4,
    held_out_fraction: float = 0.05,
    init_from: Annotated[Path | None, typer.Option(help="Start from an existing drafter folder.")] = None,
    seed: int = 0,
) -> None:
    """Train an EAGLE-3 drafter; `outrider run` offers every setting."""
    import torch
    from pydantic import ValidationError

    from outrider.core.config import TrainSection
    from outrider.core.errors import InputError
    from outrider.store.documents import Store
    from outrider.targets.folder import TargetFolder
    from outrider.train.trainer import train as work

    try:
        settings = TrainSection(
            draft_vocab_size=draft_vocab_size,
            ttt_steps=ttt_steps,
            epochs=epochs,
            max_steps=max_steps,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            held_out_fraction=held_out_fraction,
            init_from=init_from,
            seed=seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"wrong value for {first['loc'][0]}: {first['msg']}", evidence=repr(first["input"])) from None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = work(Store(store), TargetFolder.open(target), settings, out, device)
    loss = "no document was held out" if made.held_out_loss is None else f"held-out loss {made.held_out_loss:.3f}"
    accuracy = " ".join(f"{a:.3f}" for a in made.accuracy_at)
    typer.echo(f"{out / made.checkpoint.path}: {made.num_steps} steps, {loss}, accuracy by step {accuracy}, {made.tok_per_s:.0f} tokens/s")
