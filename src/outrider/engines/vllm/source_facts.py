"""What a vLLM accepts, read from its source files: nothing of it is imported.

Every module beside this one reads one matter, and names the files that it reads; patterns are those of vLLM 0.9.2 to 0.33.0.
"""

import ast
import re
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts
from outrider.engines.vllm import drafter_loading, gates
from outrider.engines.vllm.registry import registered
from outrider.engines.vllm.rewrites import rewrites
from outrider.engines.vllm.runner_choice import runner, runner_choice
from outrider.engines.vllm.runners import runners
from outrider.engines.vllm.source import Source

_METRICS: Final = "v1/spec_decode/metrics.py"
_BACKENDS: Final = ("v1/attention/backends/registry.py", "attention/backends/registry.py", "platforms/interface.py")
_BACKEND_CLASSES: Final = ("AttentionBackendEnum", "_Backend")
_REQUIRED: Final = ("torch", "transformers")
# requirements are those of such a machine: the facts of a version must not depend on where they were read
_MACHINE: Final = {"platform_machine": "x86_64", "platform_system": "Linux", "sys_platform": "linux", "python_version": "3.12", "extra": ""}


def facts_of(environment: Environment) -> EngineFacts:
    """The gates of the vLLM that an environment holds; what cannot be read is empty, and its evidence says so."""
    source = Source(environment.source)
    target_types, gate_place = gates.target_types(source)
    methods, methods_evidence = gates.methods(source)
    table = registered(source)
    return EngineFacts(
        engine="vllm",
        version=environment.version,
        source=f"{source.root}: {gate_place}, {table.registered_evidence.replace('vllm/', '')}",
        runner=runner(source, environment),
        target_types=target_types,
        drafters=table.drafters,
        drafters_evidence=table.registered_evidence,
        targets=table.targets,
        interface_classes=table.interface_classes,
        interface_evidence=table.interface_evidence,
        refuses_full_d2t=drafter_loading.refuses_full_d2t(source),
        drops_duplicate_layers=drafter_loading.drops_duplicate_layers(source),
        loading=drafter_loading.loading(source),
        runners=runners(source),
        runner_choice=runner_choice(source),
        requires=_requires(environment),
        methods=methods,
        methods_evidence=methods_evidence,
        speculative_keys=gates.speculative_keys(source),
        registered=table.registered,
        rewrites=rewrites(source),
        config_types=gates.config_types(source),
        multimodal_classes=table.multimodal_classes,
        pipeline_classes=table.pipeline_classes,
        default_layers=drafter_loading.default_layers(source),
        drafter_keys=drafter_loading.drafter_keys(source),
        metrics=_metrics(source),
        attention_backends=_attention_backends(source),
    )


def _requires(environment: Environment) -> dict[str, str]:
    """What the distribution's metadata asks for on a common machine."""
    name = environment.distribution.replace("-", "_")
    found: dict[str, str] = {}
    for path in environment.packages.glob(f"{name}-*.dist-info/METADATA"):
        for line in re.findall(r"^Requires-Dist: (.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.name in _REQUIRED and (requirement.marker is None or requirement.marker.evaluate(_MACHINE)):
                found.setdefault(requirement.name, str(requirement.specifier))
    return found


def _metrics(source: Source) -> tuple[str, ...]:
    constants = (node.value for node in ast.walk(source.tree(_METRICS)) if isinstance(node, ast.Constant))
    return tuple(dict.fromkeys(v for v in constants if isinstance(v, str) and re.fullmatch(r"vllm:spec_decode_\w+", v)))


def _attention_backends(source: Source) -> tuple[str, ...]:
    path = source.first(*_BACKENDS)
    found = next((made for name in _BACKEND_CLASSES if (made := source.find(path, name))), None)
    targets = (node.targets[0] for node in found.body if isinstance(node, ast.Assign)) if found else ()
    return tuple(target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper())
