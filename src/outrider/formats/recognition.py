"""Which layout a folder is in."""

from pathlib import Path

import outrider.formats as formats
from outrider.core.errors import InputError
from outrider.core.files import read_json
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.formats.checkpoint import DrafterCheckpoint, Format


def read_checkpoint(folder: Path) -> DrafterCheckpoint:
    """Read a drafter in whatever layout it is.

    Raises:
        InputError: no such folder, a layout that no format knows, or a fault that its format names.
    """
    config = read_json(folder / "config.json", "the drafter's config")
    known = [load_plugin(formats, plugin_id, "FORMAT", Format) for plugin_id in plugin_ids(formats)]
    for layout in known:
        if isinstance(config, dict) and layout.recognises(config):
            return layout.read(folder)
    raise InputError(
        f"{folder} is in no layout of a drafter that is known",
        evidence=f"architectures = {config.get('architectures') if isinstance(config, dict) else config!r}",
        fix=f"known layouts: {', '.join(layout.id for layout in known)}",
    )
