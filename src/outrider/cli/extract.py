"""`outrider extract`: the target's states."""

from pathlib import Path
from typing import Annotated

import typer


def extract(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    answers: Annotated[Path, typer.Option(help="answers.jsonl of `outrider synthesize`.")],
    out: Annotated[Path, typer.Option(help="The store's folder; a killed run continues in it.")],
    aux_layers: Annotated[str, typer.Option(help="Layers run, e.g. 2,15,27; the algorithm's default if not given.")] = "",
    dtype: Annotated[str, typer.Option(help="Of the stored states.")] = "bfloat16",
    compute_dtype: Annotated[str, typer.Option(help="Of the target.")] = "bfloat16",
    max_length: Annotated[int, typer.Option(min=2, help="Longer documents are cut.")] = 2048,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Padded tokens of one pass.")] = 4096,
    shard_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one file of the store.")] = 65536,
) -> None:
    """Capture the target's states for every token of the answers."""
    import torch

    from outrider.cli.choices import dtype_named, layer_list
    from outrider.drafters.eagle3 import default_aux_layers
    from outrider.extract.stage import Capture
    from outrider.extract.stage import extract as work
    from outrider.targets.folder import TargetFolder
    from outrider.targets.model import TargetModel

    folder = TargetFolder.open(target)
    layers = layer_list(aux_layers) or default_aux_layers(folder.num_layers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = TargetModel(folder, getattr(torch, dtype_named(compute_dtype)), device, layers)
    made = work("extract", model, answers, out, Capture(dtype_named(dtype), max_length, batch_tokens, shard_tokens))
    typer.echo(
        f"{out}: {made.num_documents} documents, {made.num_tokens} tokens, {made.num_supervised_tokens} of them the target's, "
        f"{made.num_bytes / 1e6:.0f} MB, aux layers {','.join(map(str, layers))}"
    )
