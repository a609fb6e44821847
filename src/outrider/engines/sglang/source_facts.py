"""What an installed SGLang accepts, read from its source files: nothing of it is imported.

There is no list of target types and no choice of model runners. Targets and drafters stand in one registry, the EntryClass
of each model file; a file that fails to import is left out of it at run time, which cannot be seen here.
"""

import re
from typing import Final

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts, LayerKey, RunnerFacts
from outrider.engines.sglang import arguments, configurations, drafters
from outrider.engines.sglang.classes import Classes
from outrider.engines.sglang.interface import CAPTURE, interface_of
from outrider.engines.sglang.source import Source

_MODELS: Final = "models"
_NESTED_IDS: Final = "eagle_aux_hidden_state_layer_ids"
_METRICS: Final = ("observability/metrics_collector.py", "metrics/collector.py")
_SETUP: Final = "model_executor/model_runner_components/attention_backend_setup.py"
_REQUIRED: Final = ("torch", "transformers")


def facts_of(environment: Environment) -> EngineFacts:
    """The gates of the SGLang that an environment holds; what cannot be read is empty, and its evidence says so."""
    source = Source(environment.source)
    models = Classes(source, _MODELS)
    registered = models.registered()
    of_drafters = {name: text.name for name, text in registered.items() if drafters.is_drafter(name)}
    targets = {name: text for name, text in registered.items() if name not in of_drafters}
    interface = interface_of(source, models, targets)
    methods, methods_evidence = arguments.methods(source)
    runner, pipeline_evidence = _runner(source)
    return EngineFacts(
        engine="sglang",
        version=environment.version,
        source=f"sglang {environment.version}: sglang/srt/{_MODELS}, {pipeline_evidence}",
        runner=None,
        target_types=None,
        drafters=drafters.of_eagle3(of_drafters),
        drafters_evidence=drafters.drafters_evidence(source, registered),
        targets={name: text.name for name, text in targets.items()},
        interface_classes=interface.classes,
        interface_evidence=interface.evidence,
        refuses_full_d2t=False,  # the map is taken whatever the size of the draft vocabulary
        drops_duplicate_layers=_drops_duplicates(source),
        loading=drafters.loading(source),
        runners={"": runner},
        runner_choice=None,
        requires=_requires(environment),
        methods=methods,
        methods_evidence=methods_evidence,
        speculative_keys=arguments.speculative_keys(source),
        registered=of_drafters,
        rewrites=drafters.rewrites(source),
        config_types=configurations.config_types(source),
        multimodal_classes=configurations.multimodal_classes(source),
        pipeline_classes=frozenset(),
        layer_shifts=interface.shifts,
        default_layers=interface.default_layers,
        drafter_keys=drafters.drafter_keys(source),
        metrics=tuple(dict.fromkeys(match[1] for _, match in source.search(list(_METRICS), r"name=\"(sglang:spec_\w+)\""))),
        attention_backends=arguments.attention_backends(source),
    )


def _runner(source: Source) -> tuple[RunnerFacts, str]:
    """The single runner, and where it is said what is refused over pipeline stages."""
    pipeline, pipeline_evidence = arguments.pipeline(source)
    keys = next(source.search(list(drafters.RUNNERS), rf"eagle_config\[\s*\"{_NESTED_IDS}\""), None)
    facts = RunnerFacts(
        layer_keys=(LayerKey(f"eagle_config.{_NESTED_IDS}", 1),) if keys else (),
        layer_keys_evidence=source.place(keys[0], keys[1].start()) if keys else f"no reading of eagle_config[{_NESTED_IDS!r}] was found",
        image_token=None,
        drafter_classes=None,
        drafter_classes_evidence="",
        interface_error=_interface_error(source),
        pipeline=pipeline,
    )
    return facts, pipeline_evidence


def _interface_error(source: Source) -> str:
    """Later versions ask first and say what is missing; before, the call itself fails."""
    for path, match in source.search([_SETUP], rf"\"{CAPTURE}, which EAGLE3"):
        return (
            f"Model ... does not implement {CAPTURE}, which EAGLE3 aux hidden-state capture requires ({source.place(path, match.start())})"
        )
    for path, match in source.search(["model_executor/model_runner.py", _SETUP], rf"\bmodel\.{CAPTURE}\("):
        return f"AttributeError: ... object has no attribute '{CAPTURE}' ({source.place(path, match.start())})"
    return f"no call of {CAPTURE} was found"


def _drops_duplicates(source: Source) -> bool:
    """Whether a state is captured where a layer's number is found among the ids: once, however often it stands there."""
    return re.search(r"\bif \w+ in self\.layers_to_capture\b", source.text(f"{_MODELS}/llama.py")) is not None


def _requires(environment: Environment) -> dict[str, str]:
    """What its metadata asks for; of several lines for a package the first, which is the one for CUDA."""
    try:
        text = (environment.packages / f"sglang-{environment.version}.dist-info" / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {name: re.search(rf"^Requires-Dist: {name}([<>=!~][^;\s]*)", text, re.MULTILINE) for name in _REQUIRED}
    return {name: match[1] for name, match in found.items() if match}
