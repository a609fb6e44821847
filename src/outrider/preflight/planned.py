"""The drafter that is still to be made, as the config that export would write for it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from outrider.core.config import ExportSection, TrainSection
from outrider.core.errors import InputError
from outrider.drafters.shape import default_aux_layers, shape_for
from outrider.formats.deepseek_eagle3_layout import config_json as mla_config_json
from outrider.formats.deepseek_eagle3_layout import sizes_from
from outrider.formats.llama_eagle3_layout import config_json
from outrider.preflight.check import whole
from outrider.preflight.reading import eos_token_ids, read_object, resolved_folder
from outrider.targets.folder import TargetFolder

# of a layer's inner width to its own
_USUAL_RATIO: Final = 4


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
        raise _unplanned(target, what) from None
    return config_json(shape, dtype, _sglang_ids(aux_layers))


def planned_eagle3(target_path: Path) -> dict[str, Any]:
    """The drafter that `outrider run` would make with its own settings; the target's weights need not be there.

    Raises:
        InputError: no such target, or a config from which no drafter can be planned.
    """
    target, settings = _target(target_path), TrainSection()
    layers = default_aux_layers(target.num_layers)
    # a mixture of experts may state no width: training asks for it, and no gate turns on it
    text = target.text_config
    width = _USUAL_RATIO * (whole(text, "hidden_size") or 0) if text.get("intermediate_size") is None else settings.intermediate_size
    return planned_config(target, layers, settings.draft_vocab_size, width, ExportSection().dtype)


def planned_mla(target_path: Path) -> dict[str, Any]:
    """The same with the target's own kind of attention, MLA, so that the drafter's cache is as small as the target's.

    Raises:
        InputError: no such target, one without MLA, or a config from which no drafter can be planned.
    """
    target, settings = _target(target_path), TrainSection()
    text, layers = target.text_config, default_aux_layers(target.num_layers)
    if text.get("kv_lora_rank") is None:
        raise InputError(
            "no MLA drafter can be planned for this target: it has no MLA attention",
            evidence=f"{target.path / 'config.json'}: no kv_lora_rank",
            fix="--drafter eagle3",
        )
    size = min(settings.draft_vocab_size, target.vocab_size)
    try:
        sizes = sizes_from(dict(text) | {"draft_vocab_size": size, "target_hidden_size": None}, target.path / "config.json")
        return mla_config_json(sizes, text, layers, _sglang_ids(layers), ExportSection().dtype) | _ends(target)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"lacks {error.args[0]}" if isinstance(error, KeyError) else f"has a wrong value: {' '.join(str(error).split())[:200]}"
        raise _unplanned(target, what) from None


def _target(path: Path) -> TargetFolder:
    folder = resolved_folder(path)
    return TargetFolder(folder, read_object(folder / "config.json", "the target's config"), {})


def _ends(target: TargetFolder) -> dict[str, int]:
    """The tokens that begin and end, where the target's files name them."""
    begin, ends = target.text_config.get("bos_token_id"), eos_token_ids(target.path, target.text_config)
    return ({"bos_token_id": begin} if isinstance(begin, int) else {}) | ({"eos_token_id": ends[0]} if ends else {})


def _sglang_ids(aux_layers: tuple[int, ...]) -> list[int] | None:
    """What export writes for SGLang, too, unless a target's class there takes ids literally."""
    return None if 0 in aux_layers else [layer - 1 for layer in aux_layers]


def _unplanned(target: TargetFolder, what: str) -> InputError:
    return InputError("no drafter can be planned for this target", evidence=f"{target.path / 'config.json'} {what}")


# by the word that `--drafter` takes
PLANS: Final[Mapping[str, Callable[[Path], dict[str, Any]]]] = {"eagle3": planned_eagle3, "eagle3-mla": planned_mla}
