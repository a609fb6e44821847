"""What a store says of itself."""

from pathlib import Path

from pydantic import ValidationError

from outrider.core.errors import InputError
from outrider.core.files import read_json
from outrider.core.names import MANIFEST_FILE
from outrider.core.results import Frozen


class Shard(Frozen):
    """One finished file of states."""

    file: str
    num_bytes: int
    sha256: str
    document_ids: tuple[str, ...]
    num_tokens: int
    num_supervised_tokens: int


class Manifest(Frozen):
    """What every shard of a store has in common, and the shards.

    Attributes:
        target_digest: identity of the target that made the states.
        aux_layers: layers run (0 = embeddings, L = before the final norm), in the order of the aux axis.
        final_norm_applied: whether the last state has been through the final norm.
        dtype: of the states.
        template_hash: of the chat template that made the tokens.
        answers_sha256: digest of the answers file the tokens come from.
    """

    version: int = 1
    target_digest: str
    hidden_size: int
    aux_layers: tuple[int, ...]
    final_norm_applied: bool
    dtype: str
    template_hash: str
    answers_sha256: str
    shards: tuple[Shard, ...] = ()
    is_complete: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_documents(self) -> int:
        return sum(len(shard.document_ids) for shard in self.shards)

    @property
    def num_supervised_tokens(self) -> int:
        return sum(shard.num_supervised_tokens for shard in self.shards)


def bytes_per_token(hidden_size: int, num_aux_layers: int, dtype_bytes: int) -> int:
    """Disk bytes of one token: the aux states, the last state, and 4 + 1 + 4 + 4 for ids, mask, argmax, log-sum-exp."""
    return (num_aux_layers + 1) * hidden_size * dtype_bytes + 13


def read_manifest(folder: Path) -> Manifest:
    """Read a store's manifest.

    Raises:
        InputError: no manifest, or not one of ours.
    """
    raw = read_json(folder / MANIFEST_FILE, "the store's manifest")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        raise InputError(
            "the store's manifest is not understood", evidence=f"{folder / MANIFEST_FILE}: {error.errors()[0]['msg']}"
        ) from None
