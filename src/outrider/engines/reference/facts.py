"""What our own engine accepts: the layout it reads, and the targets whose families name where things are. No gates."""

import outrider.targets as families
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts
from outrider.formats.llama_eagle3_layout import ARCHITECTURES
from outrider.targets.family import TargetFamily


def facts_of(environment: Environment) -> EngineFacts:
    """The same in every environment; `targets` is by model_type, which is how families are found."""
    known = [load_plugin(families, plugin_id, "TARGET", TargetFamily) for plugin_id in plugin_ids(families)]
    return EngineFacts(
        engine="reference",
        version=environment.version,
        source="outrider/engines/reference",
        runner=None,
        target_types=None,
        drafters=dict.fromkeys(ARCHITECTURES, "Eagle3Drafter"),
        drafters_evidence="outrider/formats/llama_eagle3_layout.py",
        targets={model_type: family.id for family in known for model_type in family.model_types},
        interface_classes=None,
        interface_evidence="outrider/targets: states are taken from any decoder by hooks",
        refuses_full_d2t=False,
        drops_duplicate_layers=False,
    )
