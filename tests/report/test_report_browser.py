"""The page in a real browser: light, dark, and on a phone's width."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from run_folders import config_of, full_results, measured, measurement, write_run

from outrider.report.gather import gather
from outrider.report.page import render

_CHROMIUM = shutil.which("chromium")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
# A headless window has a least width, so the page is looked at in a frame, and its script reports to the outer title.
_FRAME = """<!doctype html><title>waiting</title><iframe width="{width}" height="3000" style="border:0" srcdoc="{page}"></iframe>"""
_PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  parent.document.title = [root.scrollWidth, root.clientWidth, getComputedStyle(document.body).backgroundColor].join("|");
});</script>"""

pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="needs chromium")


def _looked_at(page: str, folder: Path, *, width: int, dark: bool = False) -> tuple[int, int, str]:
    """The page's scroll width and client width in pixels, and the colour of its paper."""
    assert _CHROMIUM is not None
    folder.mkdir()
    file = folder / "frame.html"
    file.write_text(_FRAME.format(width=width, page=html.escape(page + _PROBE)), encoding="utf-8")
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    command = [
        _CHROMIUM,
        *_QUIET,
        f"--user-data-dir={folder / 'profile'}",
        scheme,
        "--virtual-time-budget=5000",
        "--dump-dom",
        file.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(\d+)\|(\d+)\|(.*?)</title>", dom)
    assert title, dom[:300]
    return int(title[1]), int(title[2]), title[3]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    wide = full_results("n" * 120, "a long name of a prompt set, as people make them")
    sets = [*(f"set {i}" for i in range(6)), "n" * 120]
    wide["measure"] = measured({name: measurement((1.42, 1.31, 1.55), num_identical=9) for name in sets})
    runs = {
        "full": write_run(folder / "full", full_results(), config_of(workload="w.jsonl"), log=True),
        "wide": write_run(folder / ("r" * 90), wide, config_of(workload="p" * 300), log=True),
        "empty": write_run(folder / "empty", {}),
    }
    return {name: render(gather(run)) for name, run in runs.items()}


@pytest.mark.parametrize("name", ["full", "wide", "empty"])
def test_a_phone_need_not_scroll_sideways(pages: dict[str, str], tmp_path: Path, name: str) -> None:
    scroll_width, client_width, _ = _looked_at(pages[name], tmp_path / "chromium", width=390)
    assert client_width in range(360, 391)
    assert scroll_width <= client_width


def test_paper_is_light_or_dark_as_the_reader_prefers(pages: dict[str, str], tmp_path: Path) -> None:
    _, _, light = _looked_at(pages["full"], tmp_path / "light", width=1000)
    _, _, dark = _looked_at(pages["full"], tmp_path / "dark", width=1000, dark=True)
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(18, 22, 27)"
