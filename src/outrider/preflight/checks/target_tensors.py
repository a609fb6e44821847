"""Whether the target holds the embedding and the head that a drafter without its own takes from it."""

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Final

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import names_stamp, shown, tensor_names

_ID = "target_tensors"
# how their names end, in one family or another
_EMBEDDINGS: Final = ("embed_tokens.weight", "embeddings.weight", "wte.weight", "tok_embeddings.weight", "word_embeddings.weight")
_HEADS: Final = ("lm_head.weight", "lm_head.qweight", "lm_head.weight_packed", "embed_out.weight", "output.weight", "output_layer.weight")


def _run(subject: Subject) -> Finding:
    stamp = names_stamp(subject.target_path)
    if stamp is None:
        return finding(_ID, "unknown", "the target's folder holds neither an index nor weights", str(subject.target_path))
    num_names, embedding, head = _looked_up(subject.target_path, stamp)
    tied = bool(subject.text_config.get("tie_word_embeddings", subject.target_config.get("tie_word_embeddings", False)))
    place = f"{num_names} names in {subject.target_path}"
    if embedding and (head or tied):
        return finding(_ID, "pass", f"the target's embedding is {shown(embedding)}, its head {shown(head or embedding)}", place)
    lacking = "embedding" if not embedding else "head, and its config does not say tie_word_embeddings"
    return finding(
        _ID,
        "warn",
        f"no tensor of the target looks like its {lacking}",
        place,
        expected=f"a name that ends in {', '.join(_EMBEDDINGS if not embedding else _HEADS)}",
        effect="a drafter without its own cannot be trained from these files; whether the engine finds one is not told",
        fix="fetch the target whole, with the index that belongs to it",
    )


@lru_cache(maxsize=4)
def _looked_up(folder: Path, _stamp: tuple[int, int]) -> tuple[int, str | None, str | None]:
    """How many names there are, the embedding's and the head's: once for all versions of a matrix."""
    names = tensor_names(folder)
    return len(names), _shortest(names, _EMBEDDINGS), _shortest(names, _HEADS)


def _shortest(names: Collection[str], ends: tuple[str, ...]) -> str | None:
    """A language model's own name is shorter than that of what stands beside it."""
    return min((name for name in names if name.endswith(ends)), key=len, default=None)


CHECK = Check(id=_ID, order=145, run=_run, of_version=False)
