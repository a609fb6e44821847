"""The drafter that is still to be made, as the config that export would write for it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from outrider.core.config import ExportSection, TrainSection
from outrider.core.errors import InputError
from outrider.drafters.shape import default_aux_layers, shape_for
from outrider.formats.llama_eagle3_layout import config_json
from outrider.preflight.reading import eos_token_ids, read_object
from outrider.targets.folder import TargetFolder


def planned_config(
    target: TargetFolder, aux_layers: tuple[int, ...], draft_vocab_size: int, intermediate_size: int | None, dtype: str
) -> dict[str, Any]:
    """The config.json of a drafter before it is trained.

    Args:
        aux_layers: as layers run.
        draft_vocab_size: at most; a smaller vocabulary is taken whole.
        intermediate_size: None for the target's.
        dtype: of the tensors, by name.

    Raises:
        InputError: the target's config lacks something that a drafter's shape is made from.
    """
    text = target.text_config
    try:
        size = min(draft_vocab_size, target.vocab_size)
        shape = shape_for(text, eos_token_ids(target.path, text), aux_layers, size, intermediate_size)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"lacks {error.args[0]}" if isinstance(error, KeyError) else f"has a wrong value: {' '.join(str(error).split())[:200]}"
        raise InputError("no drafter can be planned for this target", evidence=f"{target.path / 'config.json'} {what}") from None
    # what export writes for SGLang, too, unless a target's class there takes ids literally
    return config_json(shape, dtype, None if 0 in aux_layers else [layer - 1 for layer in aux_layers])


def planned_eagle3(target_path: Path) -> dict[str, Any]:
    """The drafter that `outrider run` would make with its own settings; the target's weights need not be there.

    Raises:
        InputError: no such target, or a config from which no drafter can be planned.
    """
    target = TargetFolder(target_path, read_object(target_path / "config.json", "the target's config"), {})
    settings = TrainSection()
    layers = default_aux_layers(target.num_layers)
    return planned_config(target, layers, settings.draft_vocab_size, settings.intermediate_size, ExportSection().dtype)


# the drafters that need not be there yet, by the name that a command line gives them
PLANS: Final[Mapping[str, Callable[[Path], dict[str, Any]]]] = {"eagle3": planned_eagle3}
