"""The page: well-formed, self-contained, escaped, and showing what the stages said."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import (
    FAIL,
    UNKNOWN,
    WARN,
    config_of,
    diagnosed,
    full_results,
    measured,
    measurement,
    preflight,
    replayed,
    set_diagnosis,
    write_run,
)

from outrider.core.files import file_digest
from outrider.report.gather import gather
from outrider.report.glossary import GLOSSARY
from outrider.report.page import render
from outrider.report.stage import report

_VOID = {"meta", "br", "hr", "img", "link", "input"}
_HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"


class _Page(HTMLParser):
    """The page taken apart; an unclosed or wrongly nested tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def _full(tmp_path: Path, first_set: str = "workload") -> str:
    return render(gather(write_run(tmp_path / "mine", full_results(first_set), config_of(**{first_set: "w.jsonl"}), log=True)))


def test_the_page_shows_what_the_stages_said(tmp_path: Path) -> None:
    text = _Page(_full(tmp_path)).text
    for shown in (
        "Pays 1.42× [1.31, 1.55] on workload",
        "Speedup 1.42× [1.31, 1.55] 0.97× [0.91, 1.04]",
        "Output tokens/s, with drafter 61.3 61.3",
        "Acceptance length, engine 2.31 [2.21, 2.41] 1.69",
        "Acceptance length, replay 2.33 1.69",
        "Engine minus replay -0.02 [-0.04, 0.01] -0.03 [-0.11, 0.05]",
        "Diagnosis as expected undecided",
        "Acceptance rate, engine 0.437 0.229",
        "Identical outputs 78/80 first at token 17 80/80",
        "Prompts shared with training 0 3",
        "position 1, engine: 0.700",
        "position 3, replay: 0.060",
        "Could not be checked: weights-fit the drafter's tensors could not be read",
        "24 checks passed",
        "Next: Measure about 190 prompts (80 now).",
        "3,480,000",
        "5.35 GB",
        "held-out loss 5.412",
        "export/model.safetensors",
        "spec_decode_num_drafts",
        "4,831",
        "ab" * 32,
        'workload = "w.jsonl"',
        "outrider run run.toml",
    ):
        assert shown in text


def test_every_chart_is_drawn(tmp_path: Path) -> None:
    labels = [attrs["aria-label"] for tag, attrs in _Page(_full(tmp_path)).tags if tag == "svg"]
    assert labels == [
        "Speedup, 95 % interval",
        "Acceptance at each position, workload",
        "Acceptance at each position, outside",
        "Loss",
        "Held-out accuracy at each training-time-test step",
    ]


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    text = _full(tmp_path)
    page = _Page(text)
    links = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in ("href", "src", "srcset", "action", "data")]
    assert links and all(link.startswith("#") for link in links)
    assert not {"script", "link", "iframe", "img", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert "url(" not in text and "@import" not in text


def test_links_lead_somewhere_and_every_word_is_explained(tmp_path: Path) -> None:
    page = _Page(_full(tmp_path))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids) == len(GLOSSARY)
    assert {(attrs["href"] or "")[1:] for tag, attrs in page.tags if tag == "a"} <= {str(i) for i in ids}
    assert all(meaning in page.text for meaning in GLOSSARY.values())


@pytest.mark.parametrize("name", [_HOSTILE, "</title></svg></style><b>"])
def test_hostile_names_are_shown_as_text(tmp_path: Path, name: str) -> None:
    text = _full(tmp_path, name)
    assert "<script" not in text and "<b>" not in text
    assert name in _Page(text).text


def test_characters_that_no_page_may_hold_are_spelled_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"measure": measured({"a\x00\x1bz": measurement((1.42, 1.31, 1.55))})})
    (tmp_path / "run.json").write_text(r'{"key": "b\ud800y"}', encoding="utf-8")
    text = render(gather(run))
    assert r"a\u0000\u001bz" in text and r"b\ud800y" in text
    text.encode("utf-8")


def test_hostile_configuration_is_shown_as_text(tmp_path: Path) -> None:
    text = render(gather(write_run(tmp_path / "<b>run", {}, config_of(**{_HOSTILE: _HOSTILE}))))
    assert "<script" not in text and "<b>" not in text
    assert "<script>alert(1)</script>" in _Page(text).text
    assert "{{ 7 * 7 }}" in _Page(text).text


def test_an_empty_run_says_what_has_not_run(tmp_path: Path) -> None:
    page = _Page(render(gather(write_run(tmp_path / "mine", {}))))
    assert "Not measured the stage measure has not run" in page.text
    for stage in ("diagnose", "measure", "replay", "train", "preflight", "preflight-export", "export"):
        assert f"The stage {stage} has not run." in page.text
    for stage in ("preflight", "synthesize", "extract", "train", "export", "preflight-export", "measure", "replay", "diagnose"):
        assert re.search(rf"{stage}\s+has not run", page.text)
    assert "The run folder holds no configuration." in page.text
    assert not [tag for tag, _ in page.tags if tag == "svg"]


def test_a_partial_run_never_shows_zero_for_unknown(tmp_path: Path) -> None:
    results = full_results()
    text = _Page(render(gather(write_run(tmp_path, {"replay": results["replay"]})))).text
    assert "Speedup not run not run" in text
    assert "Acceptance length, engine not run not run" in text
    assert "Acceptance length, replay 2.33 1.69" in text
    assert "Prompts shared with training not run not run" in text


def test_a_missing_speedup_gives_its_reason(tmp_path: Path) -> None:
    text = _Page(render(gather(write_run(tmp_path, {"measure": measured({"mine": measurement(None)})})))).text
    assert "Speedup no data the plain arm was not run" in text
    assert "Acceptance rate, replay not run" in text


def test_the_diagnosis_stands_right_under_the_verdict(tmp_path: Path) -> None:
    results = full_results()
    results["diagnose"] = diagnosed({"workload": set_diagnosis("integration", (-1.04, -1.1, -0.98), "look at the layer names")})
    text = _Page(render(gather(write_run(tmp_path, results)))).text
    assert (
        "Pays 1.42× [1.31, 1.55] on workload Diagnosis : integration. On workload, the reason of integration with its numbers. "
        "Next: Look at the layer names. reference 0.1.0, 80 prompts"
    ) in text
    assert "Diagnosis of each prompt set" not in text


def test_findings_that_fail_or_warn_are_open_and_those_that_pass_are_folded(tmp_path: Path) -> None:
    text = render(gather(write_run(tmp_path, {"preflight-export": preflight(WARN, UNKNOWN, FAIL)})))
    folded = "".join(re.findall(r"<details><summary>24 checks passed.*?</details>", text, re.DOTALL))
    assert "property 23 is right" in folded
    shown = _Page(text.replace(folded, "")).text
    assert "property" not in shown and UNKNOWN.title not in folded
    for finding in (FAIL, WARN):
        assert f"{finding.id} {finding.title} found {finding.found} expected {finding.expected}" in shown
        assert f"evidence {finding.evidence} effect {finding.effect} fix {finding.fix}" in shown
    assert shown.index(FAIL.title) < shown.index(WARN.title) < shown.index(UNKNOWN.title)
    assert "Exported folder: fail vllm 0.16.0, V1 runner: 1 fail, 1 warn, 1 unknown, 24 pass" in shown
    assert "The stage preflight has not run." in shown and "The stage preflight-export has not run." not in shown


def test_a_replay_that_could_not_be_made_gives_its_reason(tmp_path: Path) -> None:
    results = full_results()
    results["replay"] = replayed({}, missing="the answers were sampled")
    text = _Page(render(gather(write_run(tmp_path, results)))).text
    assert "No replay: The answers were sampled." in text
    assert "Acceptance length, replay not replayed not replayed" in text


@pytest.mark.parametrize("part", ["title", "evidence", "fix", "effect", "found"])
def test_hostile_findings_are_shown_as_text(tmp_path: Path, part: str) -> None:
    text = render(gather(write_run(tmp_path, {"preflight": preflight(FAIL.model_copy(update={part: _HOSTILE}))})))
    assert "<script" not in text
    assert _HOSTILE in _Page(text).text


def test_values_that_cannot_be_drawn_are_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, {}, log=True)
    with (tmp_path / "train" / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"step": 1201, "loss": NaN}\n')
    assert "1 value of the training log is not finite, and not drawn." in _Page(render(gather(run))).text


def test_the_stage_writes_the_page_and_describes_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mine", full_results())
    page = tmp_path / "mine" / "report" / "report.html"
    result = report(run, page)
    assert result.page.path == "report.html"
    assert result.page.sha256 == file_digest(page)
    assert result.page.num_bytes == page.stat().st_size
    assert report(run, page) == result


def test_a_report_needs_no_torch() -> None:
    code = "import sys, outrider.report.stage, outrider.report.terminal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
