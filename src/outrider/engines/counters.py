"""Counters in the text of /metrics, for engines whose names differ and whose meaning does not."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from outrider.core.results import Acceptance


def totals(metrics: str, prefix: str) -> dict[str, float]:
    """Every total whose name begins with `prefix`, summed over labels but `position`, which stands behind it: NAME[0]."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith(prefix) and sample.name.endswith("_total"):
                position = sample.labels.get("position")
                name = sample.name if position is None else f"{sample.name}[{position}]"
                found[name] = found.get(name, 0.0) + sample.value
    return found


def counted(counters: Mapping[str, float], steps: str, drafted: str, accepted: str, accepted_at: str) -> Acceptance | None:
    """The counts that stand under these names, None if there was no verify step."""
    if not counters.get(steps):
        return None
    positions = sorted((int(name[len(accepted_at) + 1 : -1]), n) for name, n in counters.items() if name.startswith(accepted_at))
    return Acceptance(
        num_verify_steps=int(counters[steps]),
        num_draft_tokens=int(counters[drafted]),
        num_accepted_tokens=int(counters[accepted]),
        accepted_at=tuple(int(n) for _, n in positions),
    )
