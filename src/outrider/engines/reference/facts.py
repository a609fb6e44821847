"""What our own engine accepts: the layout it reads, and the targets whose families name where things are. No gates."""

from typing import Final

import outrider.targets as families
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts, LayerKey, Loading, RunnerFacts
from outrider.formats.llama_eagle3_layout import ARCHITECTURES
from outrider.targets.family import TargetFamily

_LAYOUT: Final = "outrider/formats/llama_eagle3_layout.py"
_LOADING: Final = Loading(
    layer_names=("midlayer", "layers.0"),
    reads_model_prefix=True,
    missing="refused",
    unexpected="refused",
    shares_head="never",
    embedding="own",
    num_layers="one",
    needs_draft_vocab_size=False,
    evidence="outrider/formats/llama_eagle3.py",
)
_RUNNER: Final = RunnerFacts(
    layer_keys=(LayerKey("eagle_aux_hidden_state_layer_ids", 0), LayerKey("eagle_config.eagle_aux_hidden_state_layer_ids", 1)),
    layer_keys_evidence=_LAYOUT,
    image_token=None,
    drafter_classes=None,
    drafter_classes_evidence="",
    interface_error="",
    pipeline="none",
)


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
        drafters_evidence=_LAYOUT,
        targets={model_type: family.id for family in known for model_type in family.model_types},
        interface_classes=None,
        interface_evidence="outrider/targets: states are taken from any decoder by hooks",
        refuses_full_d2t=False,
        drops_duplicate_layers=False,
        loading=_LOADING,
        runners={"": _RUNNER},
        methods=("eagle3",),
        methods_evidence="outrider/engines/reference/__init__.py",
        default_layers=(),  # a folder that names no layers is refused
    )
