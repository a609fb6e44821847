"""How long each phase of a start took before: of the same engine, version and target on this machine."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from outrider.core.files import write_json
from outrider.core.results import Frozen
from outrider.engines.environment import Environment
from outrider.engines.environments import home
from outrider.engines.log_rules import Phase

_KEPT_STARTS = 5
_KEPT_FILES = 200


class Timings(Frozen):
    """The last starts, the newest at the end: seconds by phase."""

    engine: str
    version: str
    target: str
    starts: tuple[dict[Phase, float], ...] = ()

    def usual_s(self) -> dict[Phase, float]:
        """The median of each phase."""
        phases = {phase: None for start in self.starts for phase in start}
        return {phase: median(start[phase] for start in self.starts if phase in start) for phase in phases}


def timings_of(environment: Environment, target: Path) -> Timings:
    """What is known of earlier starts; a file that cannot be read is as good as none."""
    none = Timings(engine=environment.distribution, version=environment.version, target=str(target.resolve()))
    try:
        kept = Timings.model_validate_json(_path_of(none).read_bytes())
    except (OSError, ValidationError):
        return none
    return kept if kept.target == none.target else none


def keep(timings: Timings, start: Mapping[Phase, float]) -> None:
    """Add a start that came to be ready; what cannot be written is not worth an error."""
    starts = (*timings.starts, {phase: round(seconds, 3) for phase, seconds in start.items()})[-_KEPT_STARTS:]
    try:
        write_json(_path_of(timings), timings.model_copy(update={"starts": starts}).model_dump())
        files = sorted(_folder().glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[:-_KEPT_FILES]:
            old.unlink()
    except OSError:
        return


def _path_of(timings: Timings) -> Path:
    digest = hashlib.sha256(timings.target.encode()).hexdigest()[:12]
    return _folder() / f"{timings.engine}-{timings.version}-{digest}.json"


def _folder() -> Path:
    return home() / "timings"
