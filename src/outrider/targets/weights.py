"""Single tensors of a target, read from its shards: the trainer never loads the model."""

from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from outrider.core.errors import InputError
from outrider.targets.folder import TargetFolder


def read_tensor(target: TargetFolder, names: tuple[str, ...], what: str) -> Tensor:
    """Read the first of `names` that the target has.

    Raises:
        InputError: it has none of them.
    """
    entry = target.tensor_named(names)
    if entry is None:
        raise InputError(f"the target has no {what}", evidence=f"{target.path}: looked for {', '.join(names)}")
    with safe_open(entry.file, framework="pt") as file:
        tensor: Tensor = file.get_tensor(entry.name)
    return tensor


def embedding(target: TargetFolder) -> Float[Tensor, "V H"]:
    """The input embedding, float32."""
    return read_tensor(target, target.family.embed, "input embedding").float()


def lm_head_rows(target: TargetFolder, ids: Int[Tensor, "U"]) -> Float[Tensor, "U H"]:
    """Rows of the output head, float32; of the embedding where the two are tied."""
    family = target.family
    tied = target.tensor_named(family.lm_head) is None
    head = read_tensor(target, family.embed if tied else family.lm_head, "output head")
    return head[ids].float()


def final_norm(target: TargetFolder) -> Float[Tensor, "H"]:
    """The weight of the norm before the head, float32."""
    return read_tensor(target, target.family.final_norm, "final norm").float()
