"""The report in the terminal: the numbers, at 80 columns, piped."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import FAIL, UNKNOWN, WARN, diagnosed, full_results, measured, measurement, preflight, set_diagnosis, write_run

from outrider.core.record import RunFolder
from outrider.report.gather import gather
from outrider.report.terminal import print_report, print_set_diagnoses


def _printed(run: RunFolder, width: int = 80) -> str:
    file = io.StringIO()
    print_report(gather(run), Console(file=file, width=width))
    return file.getvalue()


def _line(text: str, beginning: str) -> list[str]:
    """The cells of the first line that begins so."""
    line = next(line for line in text.splitlines() if line.strip().startswith(beginning))
    return line.split(beginning, 1)[1].split()


def test_the_numbers_are_there_at_80_columns(tmp_path: Path) -> None:
    text = _printed(write_run(tmp_path, full_results()))
    assert text.splitlines()[0] == "pays: 1.42× [1.31, 1.55] on workload"
    assert text.splitlines()[1] == "diagnosis: as expected; on workload, the reason of as expected with its numbers"
    assert _line(text, "engine minus replay") == ["-0.02", "[-0.04,", "0.01]"]
    assert _line(text.split("\noutside\n")[1], "diagnosis") == ["undecided"]
    assert _line(text, "acceptance length") == ["2.31", "[2.21,", "2.41]", "2.33"]
    assert _line(text, "acceptance rate") == ["0.437", "0.443"]
    assert _line(text, "accepted at position 2") == ["0.400", "0.405"]
    assert _line(text, "output tokens/s, with drafter") == ["61.3"]
    assert _line(text, "output tokens/s, without") == ["43.2"]
    assert _line(text, "speedup") == ["1.42×", "[1.31,", "1.55]"]
    assert _line(text, "identical outputs") == ["78/80"]
    assert _line(text, "distinct answers") == ["79"]
    assert _line(text, "extract")[2:5] == ["1,160,000", "5.35", "GB"]
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_stages_that_have_not_run_are_said(tmp_path: Path) -> None:
    results = full_results()
    text = _printed(write_run(tmp_path, {name: results[name] for name in ("synthesize", "replay")}))
    assert text.splitlines()[0] == "not measured: the stage measure has not run"
    assert text.splitlines()[1] == "diagnosis: the stage diagnose has not run"
    assert _line(text, "acceptance length") == ["has", "not", "run", "2.33"]
    for stage in ("preflight", "extract", "train", "export", "preflight-export", "measure", "diagnose"):
        assert _line(text, stage) == ["has", "not", "run"]


def test_a_set_that_only_one_side_knows(tmp_path: Path) -> None:
    results = full_results()
    results["measure"] = measured({"only here": measurement(None)})
    text = _printed(write_run(tmp_path, results))
    assert _line(text, "acceptance length") == ["2.31", "[2.21,", "2.41]", "not", "replayed"]
    assert _line(text, "speedup")[:2] == ["no", "data"]
    assert _line(text.split("\nworkload\n")[1], "acceptance length") == ["not", "measured", "2.33"]


def test_the_next_test_follows_the_diagnosis(tmp_path: Path) -> None:
    results = full_results()
    results["diagnose"] = diagnosed({"workload": set_diagnosis("regime", (0.0, -0.01, 0.01), "measure a smaller K than 3")})
    lines = _printed(write_run(tmp_path, results), width=120).splitlines()
    assert lines[:3] == [
        "pays: 1.42× [1.31, 1.55] on workload",
        "diagnosis: regime; on workload, the reason of regime with its numbers",
        "next: measure a smaller K than 3",
    ]


def test_every_set_is_told_where_asked() -> None:
    file = io.StringIO()
    found = diagnosed({"a": set_diagnosis("training", None, "train longer"), "b": set_diagnosis("undecided", None)})
    print_set_diagnoses(found, Console(file=file, width=80))
    assert file.getvalue().splitlines() == [
        "a: training; the reason of training with its numbers",
        "next: train longer",
        "b: undecided; the reason of undecided with its numbers",
    ]


def test_findings_are_printed_worst_first_and_passes_as_a_count(tmp_path: Path) -> None:
    text = _printed(write_run(tmp_path, {"preflight": preflight(WARN, UNKNOWN, FAIL)}), width=120)
    assert "preflight of the planned drafter (vllm 0.16.0, V1 runner): 1 fail, 1 warn, 1 unknown, 24 pass" in text
    places = [text.index(f"{f.verdict.upper():<7} {f.id}  {f.title}") for f in (FAIL, WARN, UNKNOWN)]
    assert places == sorted(places)
    assert f"  fix       {FAIL.fix}" in text and f"  evidence  {WARN.evidence}" in text
    assert "property" not in text


@pytest.mark.parametrize("name", ["[bold red]x[/]", "[/]", "\x1b[2Jx", "x\u202ey", "n" * 200])
def test_names_do_not_act_on_the_terminal(tmp_path: Path, name: str) -> None:
    text = _printed(write_run(tmp_path, full_results(first_set=name)))
    shown = name.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
    assert shown in text.replace("\n", "")
    assert "\x1b" not in text and "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 80
