"""Plug-ins: one file or folder each; its name is its id; it defines one constant."""

import difflib
import importlib
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from outrider.core.errors import InputError

T = TypeVar("T")


def plugin_ids(package: ModuleType) -> list[str]:
    """The ids in a plug-in package: its public modules, and entry points of the group named like the package."""
    own = [m.name for m in pkgutil.iter_modules(package.__path__) if _is_plugin(package, m)]
    outside = [entry.name for entry in entry_points(group=package.__name__)]
    return sorted({*own, *outside})


def load_plugin(package: ModuleType, plugin_id: str, constant: str, kind: type[T]) -> T:
    """Load the `constant` of one plug-in.

    Raises:
        InputError: no plug-in of that name; the nearest is named.
    """
    known = plugin_ids(package)
    if plugin_id not in known:
        near = difflib.get_close_matches(plugin_id, known, n=1)
        what = package.__name__.rsplit(".", 1)[-1].removesuffix("s")
        fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise InputError(f"no {what} named {plugin_id!r}", fix=fix)
    for entry in entry_points(group=package.__name__):
        if entry.name == plugin_id:
            module = importlib.import_module(entry.module)
            break
    else:
        module = importlib.import_module(f"{package.__name__}.{plugin_id}")
    value = getattr(module, constant)
    if not isinstance(value, kind):
        raise TypeError(f"{module.__name__}.{constant} is not a {kind.__name__}")
    return value


def _is_plugin(package: ModuleType, module: pkgutil.ModuleInfo) -> bool:
    """A package says which of its modules are its interface or its machinery (SEAMS), or that its plug-ins are folders."""
    if getattr(package, "PLUGINS_ARE_FOLDERS", False):
        return module.ispkg
    return not module.name.startswith("_") and module.name not in getattr(package, "SEAMS", ())
