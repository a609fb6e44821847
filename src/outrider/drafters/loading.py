"""A drafter from its folder, beside the target it is for."""

from pathlib import Path

from outrider.core.errors import InputError
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.formats.recognition import read_checkpoint
from outrider.targets.folder import TargetFolder
from outrider.targets.weights import embedding


def load_drafter(folder: Path, target: TargetFolder) -> Eagle3Drafter:
    """Load a drafter in float32, on the CPU.

    Raises:
        InputError: it cannot be read, or is for another target.
    """
    checkpoint = read_checkpoint(folder)
    config = checkpoint.config
    if (config.target_hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise InputError(
            "the drafter is for another target",
            evidence=f"{folder}: hidden {config.target_hidden_size}, vocabulary {config.vocab_size}; "
            f"{target.path}: {target.hidden_size}, {target.vocab_size}",
            fix="name the target it was trained for",
        )
    return Eagle3Drafter.from_checkpoint(checkpoint, embedding(target)).eval()
