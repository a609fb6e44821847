"""Whether what is known of the engine is of the very version that was named."""

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding

_ID = "engine_facts"


def _run(subject: Subject) -> Finding:
    if subject.standing == "exact":
        return finding(_ID, "pass", f"what is checked is {subject.engine} itself", subject.facts.source)
    if subject.standing == "between":
        return finding(
            _ID,
            "warn",
            f"no facts are kept of {subject.engine}, a version between known ones",
            subject.facts.source,
            effect="a gate that was mended or put in since then is not seen",
            fix="name an installed one: --engine-python or --engine-image",
        )
    return finding(
        _ID,
        "unknown",
        f"{subject.engine} is {subject.standing} than every version whose facts are kept",
        subject.facts.source,
        effect="nothing that depends on the version can be told; what the nearest version would do is said instead",
        fix="name an installed one: --engine-python or --engine-image",
    )


CHECK = Check(id=_ID, order=0, run=_run, of_version=False)
