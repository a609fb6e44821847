"""Whether target and drafter can be cut into as many parts as the launch asks for."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding, has_experts, whole

_ID = "parallel_limits"
# the embedding's rows are padded to a multiple of this before they are shared out
_VOCABULARY_PADDING: Final = 64


def _run(subject: Subject) -> Finding:
    tensor = subject.arguments.number("tensor-parallel-size", 1)
    stages = subject.arguments.number("pipeline-parallel-size", 1)
    place = f"--tensor-parallel-size {tensor} --pipeline-parallel-size {stages}; {subject.target_file}; {subject.drafter_file}"
    faults = [*_of_tensors("target", subject.text_config, tensor), *_of_tensors("drafter", subject.drafter_config, tensor)]
    if faults and subject.facts.engine == "sglang" and subject.arguments.has("enable-dp-attention"):
        title = f"with attention shared out by data, what a tensor parallel size of {tensor} cuts is not known"
        return finding(_ID, "unknown", title, place, found="; ".join(faults))
    if faults:
        return finding(
            _ID,
            "fail",
            f"{'; '.join(faults)}, at a tensor parallel size of {tensor}",
            place,
            effect="the start ends",
            fix="a tensor parallel size that divides them all",
        )
    if stages > 1:
        return _of_stages(subject, stages, place)
    return finding(_ID, "pass", f"target and drafter can be cut into {tensor} parts" if tensor > 1 else "nothing is cut into parts", place)


def _of_tensors(what: str, config: Mapping[str, Any], size: int) -> Iterator[str]:
    """What cannot be shared out evenly; a count that the config does not state is not looked at."""
    heads, pairs, rows = (whole(config, key) for key in ("num_attention_heads", "num_key_value_heads", "vocab_size"))
    width = whole(config, "intermediate_size")
    if heads is not None and heads % size:
        yield f"the {what}'s {heads} attention heads cannot be shared out"
    # fewer pairs than parts are repeated, a latent attention has none of its own
    if pairs is not None and not config.get("kv_lora_rank") and (pairs % size and size % pairs):
        yield f"the {what}'s {pairs} key-value heads can neither be shared out nor repeated"
    # a mixture of experts may have no layer of that width
    if width is not None and width % size and not has_experts(config):
        yield f"the {what}'s intermediate size of {width} cannot be shared out"
    if rows is not None and -(-rows // _VOCABULARY_PADDING) * _VOCABULARY_PADDING % size:
        yield f"the {what}'s vocabulary of {rows} cannot be shared out"


def _of_stages(subject: Subject, stages: int, place: str) -> Finding:
    runner = subject.runner_facts
    which = f"the {subject.runner} model runner of {subject.engine}" if subject.runner else subject.engine
    title = f"whether {which} drafts over {stages} pipeline stages is not known"
    if runner is None or runner.pipeline == "unknown":
        return finding(_ID, "unknown", title, place)
    served = subject.target_classes[0] if subject.target_classes else None
    if runner.pipeline == "all" or (runner.pipeline == "listed" and served in subject.facts.pipeline_classes):
        return finding(_ID, "pass", f"{which} drafts over pipeline stages", place)
    if runner.pipeline == "listed" and served is None:
        return finding(_ID, "unknown", title, place)
    return finding(
        _ID,
        "fail",
        f"{which} does not draft over pipeline stages" + (f" for {served}" if runner.pipeline == "listed" else ""),
        place,
        found=f"{stages} stages",
        expected="one stage",
        effect="the start ends, at the latest after all weights are loaded, or the drafter is fed states of the last stage alone",
        fix="--pipeline-parallel-size 1, and a larger tensor parallel size instead",
    )


CHECK = Check(id=_ID, order=70, run=_run)
