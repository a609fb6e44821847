"""Whether the drafter's tensors have the shapes that its config states."""

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.layout import layout_of
from outrider.preflight.reading import shown

_ID = "tensor_shapes"
_SHOWN = 4


def _run(subject: Subject) -> Finding:
    layout, tensors = layout_of(subject), subject.drafter_tensors
    if tensors is None:
        return finding(_ID, "unknown", "the drafter's tensors could not be looked at", subject.drafter_unread)
    if isinstance(layout, str):
        return finding(_ID, "unknown", f"which shapes the drafter should have cannot be told: {layout}", subject.drafter_file)
    named = [(entry, layout.our_name(entry.name)) for entry in tensors.values()]
    pairs = [(entry, layout.shapes[name]) for entry, name in named if name in layout.shapes]
    place = f"headers in {subject.drafter_path}; {subject.drafter_file}"
    if not pairs:
        return finding(_ID, "unknown", "the drafter holds none of the tensors that its config speaks of", place)
    wrong = [(entry, shape) for entry, shape in pairs if entry.shape != shape]
    if not wrong:
        return finding(_ID, "pass", f"{len(pairs)} tensors have the shapes that the config states", place)
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return finding(
        _ID,
        "fail",
        f"{len(wrong)} tensors have other shapes than the config states",
        place,
        found=", ".join(f"{shown(entry.name)} {list(entry.shape)}" for entry, _ in wrong[:_SHOWN]) + more,
        expected=", ".join(f"{shown(entry.name)} {list(shape)}" for entry, shape in wrong[:_SHOWN]) + more,
        effect="the start ends while the drafter is loaded",
        fix="config and weights are of different drafters: put the right ones together, or export again",
    )


CHECK = Check(id=_ID, order=120, run=_run)
