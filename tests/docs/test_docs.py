"""What the documents say is run."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.commands import document
from outrider.core.config import load_config
from outrider.engines.environment import Environment
from outrider.targets.folder import TargetFolder
from preflight.folders import write_target

ROOT = Path(__file__).parents[2]
OUTRIDER = Path(sys.executable).parent / "outrider"


def commands_in(page: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_commands_page_is_current() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == document()


def test_own_target_page_runs_as_it_stands(tmp_path: Path, tiny_target: TargetFolder) -> None:
    shutil.copytree(tiny_target.path, tmp_path / "model")
    for name, first in (("prompts", 0), ("held_out", 100)):
        rows = [{"prompt": f"say {first + number} words"} for number in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = commands_in("docs/own-target.md")
    assert len(commands) == 12
    for command in commands:
        program, *arguments = command.split()
        assert program == "outrider"
        result = subprocess.run([OUTRIDER, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        if arguments[0] == "init":
            shorten(tmp_path / "run.toml")
    assert json.loads((tmp_path / "runs/run/measure.json").read_text())["acceptance_length"] >= 1
    assert json.loads((tmp_path / "work/measured/measure.json").read_text())["acceptance_length"] >= 1
    assert (tmp_path / "runs/run/report/report.html").stat().st_size > 0


def test_engines_page_runs_as_it_stands(tmp_path: Path, tiny_target: TargetFolder, vllm: Environment) -> None:
    """The engine is installed already: adding it says so."""
    shutil.copytree(tiny_target.path, tmp_path / "target")
    commands = commands_in("docs/engines.md")
    assert len(commands) == 6
    for command in commands:
        result = subprocess.run([OUTRIDER, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=1800)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert vllm.name in result.stdout or "tokenizer" in result.stdout


def test_preflight_page_runs_as_it_stands(tmp_path: Path) -> None:
    """The engines need not be installed, nor need the target hold weights."""
    write_target(tmp_path / "target")
    commands = commands_in("docs/preflight.md")
    assert len(commands) == 3
    for command in commands:
        result = subprocess.run([OUTRIDER, *shlex.split(command)[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "vllm 0.25.0" in result.stdout or "sglang 0.5.16" in result.stdout


def shorten(config: Path) -> None:
    """The same job with answers of 24 tokens, so that the test is short."""
    text = config.read_text()
    shortened = text.replace("# max_tokens = 512", "max_tokens = 24").replace("# max_tokens = 256", "max_tokens = 24")
    assert shortened.count("max_tokens = 24") == 2
    config.write_text(shortened)


def test_defaults_in_the_commented_config_are_the_real_ones(tmp_path: Path) -> None:
    template = (ROOT / "src/outrider/cli/run.toml").read_text()
    examples = {
        "num_prompts = 10000",
        "max_steps",
        "intermediate_size",
        "init_from",
        "aux_layers",
        "threads",
        "engines",
        "environment",
        "args",
        "lift_target_types",
    }
    uncommented = "\n".join(
        line.removeprefix("# ") if re.match(r"# \w+ = ", line) and not any(name in line for name in examples) else line
        for line in template.splitlines()
    )
    (tmp_path / "plain.toml").write_text(template)
    (tmp_path / "explicit.toml").write_text(uncommented)
    assert uncommented != template
    assert load_config(tmp_path / "plain.toml") == load_config(tmp_path / "explicit.toml")


@pytest.mark.parametrize("page", ["README.md", "docs/own-target.md", "docs/architecture.md", "docs/engines.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text())
    local = [link for link in links if "://" not in link]
    assert all((ROOT / page).parent.joinpath(link).exists() for link in local), local
