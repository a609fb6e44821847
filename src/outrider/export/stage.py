"""The stage: write the folder, read it back, and compare tensor by tensor."""

from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.core.errors import FindingFailed, InputError
from outrider.core.files import write_json
from outrider.core.names import TRAINING_RECORD_FILE
from outrider.core.record import output_file
from outrider.core.results import ExportResult
from outrider.export.contracts import Wish, parse_engines, sglang_aux_layers
from outrider.formats import llama_eagle3
from outrider.formats.checkpoint import DrafterCheckpoint
from outrider.formats.safetensors_file import SINGLE_FILE
from outrider.formats.training import load_training
from outrider.targets.folder import TargetFolder


def export(checkpoint: Path, target: TargetFolder, folder: Path, layer_names: str, dtype: str, engines: Sequence[str]) -> ExportResult:
    """Write a training checkpoint as a folder that the named engines load as EAGLE-3.

    Args:
        layer_names: "midlayer" or "layers.0".
        dtype: of the tensors.
        engines: e.g. `vllm==0.25.0`; none for the newest of all.

    Raises:
        InputError: a checkpoint of another target, or something one folder cannot say to all the engines.
        FindingFailed: what was read back differs from what was written.
    """
    trained = load_training(checkpoint)
    if trained.record["target_digest"] != target.digest:
        raise InputError(
            "the drafter was trained for another target", evidence=f"{checkpoint}; {target.path}", fix="name the target it was trained for"
        )
    named = parse_engines(tuple(engines))
    wish = Wish(trained.drafter.config.aux_layers, target.num_layers, layer_names, target.family)
    nested = sglang_aux_layers(wish, named)
    torch_dtype = getattr(torch, dtype)
    llama_eagle3.FORMAT.write(trained.drafter, folder, {"layer_names": layer_names, "dtype": torch_dtype, "sglang_aux_layers": nested})
    write_json(folder / TRAINING_RECORD_FILE, trained.record | {"num_steps": trained.step})
    compare(trained.drafter, llama_eagle3.FORMAT.read(folder), torch_dtype, folder)
    return ExportResult(
        weights=output_file(folder / SINGLE_FILE, folder.parent),
        config=output_file(folder / "config.json", folder.parent),
        layer_names=layer_names,
        engines=tuple(str(engine) for engine in named),
    )


def compare(written: DrafterCheckpoint, read: DrafterCheckpoint, dtype: torch.dtype, folder: Path) -> None:
    """Check that a folder holds what was to be written, in `dtype`.

    Raises:
        FindingFailed: a tensor, the vocabulary or the config differs.
    """
    if read.config != written.config:
        raise FindingFailed("the exported config reads back otherwise", evidence=f"{folder}: {read.config} != {written.config}")
    if set(read.tensors) != set(written.tensors):
        raise FindingFailed(
            "the exported folder has other tensors", evidence=f"{folder}: {sorted(set(read.tensors) ^ set(written.tensors))}"
        )
    for name, tensor in written.tensors.items():
        if not torch.equal(read.tensors[name], tensor.to(dtype)):
            raise FindingFailed(f"the exported {name} differs from the trained one", evidence=str(folder))
    ours, theirs = written.draft_vocab, read.draft_vocab
    if (ours is None) != (theirs is None) or (ours is not None and theirs is not None and not torch.equal(ours, theirs)):
        raise FindingFailed("the exported draft vocabulary differs from the trained one", evidence=str(folder))
