"""Every plug-in keeps its package's contract; a new file is picked up by itself."""

from types import ModuleType

import pytest

import outrider.drafters
import outrider.engines
import outrider.formats
import outrider.preflight.checks
import outrider.targets
from outrider.core.errors import InputError
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.drafters.algorithm import Algorithm
from outrider.engines.engine import Engine
from outrider.formats.checkpoint import Format
from outrider.preflight.check import Check
from outrider.targets.family import TargetFamily

CONTRACTS: tuple[tuple[ModuleType, str, type], ...] = (
    (outrider.drafters, "DRAFTER", Algorithm),
    (outrider.engines, "ENGINE", Engine),
    (outrider.formats, "FORMAT", Format),
    (outrider.preflight.checks, "CHECK", Check),
    (outrider.targets, "TARGET", TargetFamily),
)
PLUGINS = [(package, plugin_id, constant, kind) for package, constant, kind in CONTRACTS for plugin_id in plugin_ids(package)]


@pytest.mark.parametrize(("package", "plugin_id", "constant", "kind"), PLUGINS, ids=[f"{p.__name__}.{i}" for p, i, _, _ in PLUGINS])
def test_a_plugin_is_named_like_its_file(package: ModuleType, plugin_id: str, constant: str, kind: type) -> None:
    assert load_plugin(package, plugin_id, constant, kind).id == plugin_id


def test_every_package_has_plugins() -> None:
    assert {package for package, *_ in PLUGINS} == {package for package, _, _ in CONTRACTS}


def test_the_nearest_name_is_told() -> None:
    with pytest.raises(InputError) as caught:
        load_plugin(outrider.engines, "referense", "ENGINE", Engine)
    assert caught.value.fix == "did you mean reference?"


def test_no_model_type_belongs_to_two_families() -> None:
    families = [load_plugin(outrider.targets, plugin_id, "TARGET", TargetFamily) for plugin_id in plugin_ids(outrider.targets)]
    types = [model_type for family in families for model_type in family.model_types]
    assert len(types) == len(set(types))


@pytest.mark.parametrize("num_layers", range(2, 100))
def test_default_aux_layers_are_three_different_ones_within_the_target(num_layers: int) -> None:
    layers = load_plugin(outrider.drafters, "eagle3", "DRAFTER", Algorithm).default_aux_layers(num_layers)
    assert len(set(layers)) == 3 and sorted(layers) == list(layers)
    assert layers[0] >= 0 and layers[-1] <= num_layers
