"""Whether the method is the one that the drafter was trained for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.reading import shown

_ID = "method_fits"
# engine → algorithm → the methods that run it, the one to take first; an algorithm that is not listed is run by its own name
_RUN_BY: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {"peagle": ("eagle3",), "dflash2": ("dflash",)},
    "sglang": {"eagle": ("eagle", "nextn"), "mtp": ("nextn", "eagle", "frozen_kv_mtp")},
}
# methods that draft without a drafter
_WITHOUT_DRAFTER: Final = ("ngram", "ngram_gpu", "suffix")
_OTHERWISE: Final = "the drafter's weights are read as those of another algorithm: the start ends, or nearly every draft is rejected"


@dataclass(frozen=True)
class _Misfit:
    """What becomes of an algorithm that is run by a method of another one."""

    engine: str
    algorithm: str
    method: str
    effect: str


_MISFITS: Final = (
    _Misfit("sglang", "eagle3", "eagle", "no error, and an acceptance length of exactly 1.00: fc is never applied"),
    _Misfit("sglang", "eagle3", "nextn", "no error, and an acceptance length of exactly 1.00: fc is never applied"),
    _Misfit("vllm", "eagle3", "eagle", "the start ends, or the drafter is fed the last layer alone and nearly every draft is rejected"),
    _Misfit("vllm", "eagle3", "draft_model", "the drafter is loaded as a language model of its own: the start ends"),
)


def _run(subject: Subject) -> Finding:
    engine, algorithm, method = subject.facts.engine, subject.algorithm, subject.method
    place = f"{subject.drafter_file}; {subject.method_source}"
    if algorithm is None or method is None:
        return finding(_ID, "unknown", "the drafter's config does not tell which algorithm it is of", place)
    if method in _WITHOUT_DRAFTER:
        return _wrong(f"{method} uses no drafter", place, "the drafter is not used", "the method for this drafter, or no drafter")
    wanted = _RUN_BY.get(engine, {}).get(algorithm, (algorithm,))
    if not _fits(method, wanted):
        effect = next((m.effect for m in _MISFITS if (m.engine, m.algorithm, m.method) == (engine, algorithm, method)), _OTHERWISE)
        title = f"a drafter of {shown(algorithm)} would be run by the method {shown(method)}"
        flag = f"--speculative-algorithm {wanted[0].upper()}" if engine == "sglang" else f'"method": "{wanted[0]}"'
        return _wrong(title, place, effect, flag)
    if engine == "vllm" and algorithm == "peagle" and (title := _not_parallel(subject)):
        fix = '"parallel_drafting": true in the speculative config, from vllm 0.16.0 on'
        return _wrong(title, place, "its drafts come one by one, for which it was not trained", fix)
    return finding(_ID, "pass", f"{method} is the method for a drafter of {shown(algorithm)}", place)


def _fits(method: str, wanted: tuple[str, ...]) -> bool:
    """vLLM still takes the words that it had for each family's MTP, e.g. deepseek_mtp."""
    return method in wanted or ("mtp" in wanted and method.endswith("_mtp"))


def _not_parallel(subject: Subject) -> str:
    """A P-EAGLE drafter drafts all tokens in one pass, which has to be asked for."""
    if "parallel_drafting" not in subject.facts.speculative_keys:
        return f"{subject.engine} cannot draft in parallel, as a P-EAGLE drafter has to"
    if subject.arguments.speculative.get("parallel_drafting") is True:
        return ""
    return "a P-EAGLE drafter would be run without parallel_drafting"


def _wrong(title: str, place: str, effect: str, fix: str) -> Finding:
    return finding(_ID, "fail", title, place, effect=effect, fix=fix)


CHECK = Check(id=_ID, order=40, run=_run)
