"""`outrider replay`: acceptance without an engine."""

from pathlib import Path
from typing import Annotated

import typer


def replay(
    target: Annotated[Path, typer.Option(help="The target's folder.")],
    drafter: Annotated[Path, typer.Option(help="The drafter's folder.")],
    store: Annotated[Path, typer.Option(help="A store of the target's greedy answers.")],
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed a step.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="The token limit the answers were made with.")] = 512,
) -> None:
    """Acceptance from stored states and the target's own tokens."""
    from outrider.drafters.loading import load_drafter
    from outrider.replaying import replay_store
    from outrider.store.documents import Store
    from outrider.targets.folder import TargetFolder

    folder = TargetFolder.open(target)
    found = replay_store(load_drafter(drafter, folder), Store(store), folder, num_speculative_tokens, max_tokens).total
    if found.acceptance_length is None:
        typer.echo("no verify step: every answer is a single token")
        return
    positions = " ".join(f"{p:.3f}" for p in found.acceptance_at)
    typer.echo(f"acceptance length {found.acceptance_length:.3f} over {found.num_verify_steps} verify steps; by position {positions}")
