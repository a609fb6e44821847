"""Each bad input through the command line: one clear error, the right exit code, no traceback, nothing left running."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from builders import CPU, TINY_AUX_LAYERS, random_drafter, random_prompts, write_drafter
from outrider.cli import main as command_line
from outrider.core.names import MANIFEST_FILE
from outrider.core.record import RunFolder
from outrider.extract.stage import Capture, extract
from outrider.store.documents import Store
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel
from pipeline.jobs import environment, nothing_left, outrider, read_rows, write_wider_target

_Done = subprocess.CompletedProcess[str]
_HELP = ("  evidence  ", "  fix       ")


def _error(done: _Done, exit_code: int, says: str) -> str:
    """Check that a command ended with one clear error; returns the error's text."""
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    text = done.stderr[done.stderr.index("error: ") :]
    first, *rest = text.splitlines()
    assert says in first, first
    assert any(line.startswith(_HELP) for line in rest), text
    return text


def _copy(target: TargetFolder, folder: Path) -> Path:
    shutil.copytree(target.path, folder)
    return folder


def _answers(path: Path, target: TargetFolder, number: int, length: int = 30) -> Path:
    """An answers file of random tokens."""
    rows = [
        {
            "id": f"row:{n}",
            "input_ids": (list(ids) * 20)[:length],
            "loss_mask": [0] * 3 + [1] * (length - 3),
            "template_hash": target.template_hash,
        }
        for n, ids in enumerate(random_prompts(number, target.vocab_size))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _store(folder: Path, target: TargetFolder, aux_layers: tuple[int, ...] = TINY_AUX_LAYERS) -> Path:
    answers = _answers(folder.with_suffix(".jsonl"), target, 4)
    extract("states", TargetModel(target, torch.float32, CPU, aux_layers), answers, folder, Capture("float32", 64, 256, 1000))
    return folder


@pytest.fixture(scope="module")
def store(tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the tiny target's states."""
    return _store(tmp_path_factory.mktemp("stores") / "tiny", tiny_target)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    """Another target."""
    return write_wider_target(tmp_path_factory.mktemp("wider") / "wider")


@pytest.fixture(autouse=True)
def _leaves_nothing_running(tmp_path: Path) -> Iterator[None]:
    yield
    assert nothing_left(tmp_path)


# --- run.toml ------------------------------------------------------------------------------------------------------------


def _run(tmp_path: Path, text: str) -> _Done:
    (tmp_path / "run.toml").write_text(text)
    return outrider("run", tmp_path / "run.toml", "--folder", tmp_path / "run")


def test_no_configuration(tmp_path: Path) -> None:
    assert "outrider init" in _error(outrider("run", tmp_path / "none.toml"), 2, "no configuration at")


def test_a_configuration_that_is_not_toml(tmp_path: Path) -> None:
    assert "line 2" in _error(_run(tmp_path, "[target]\npath = \n"), 2, "is not valid TOML")


def test_an_unknown_key(tmp_path: Path) -> None:
    text = _error(_run(tmp_path, "[target]\npath = 'x'\n[train]\nlearning_rat = 1.0\n"), 2, "unknown key train.learning_rat")
    assert "did you mean learning_rate?" in text
    assert not (tmp_path / "run").exists()


def test_a_wrong_value(tmp_path: Path) -> None:
    assert "'float16'" in _error(_run(tmp_path, "[target]\npath = 'x'\n[engine]\ndtype = 'float16'\n"), 2, "wrong value at engine.dtype")


def test_a_stage_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[target]\npath = 'x'\n")
    assert "synthesize" in _error(outrider("run", tmp_path / "run.toml", "--until", "serve"), 2, "no stage named 'serve'")


def test_an_engine_that_is_none(tmp_path: Path, tiny_target: TargetFolder) -> None:
    text = f"[target]\npath = '{tiny_target.path}'\n[engine]\nname = 'referense'\n"
    assert "did you mean reference?" in _error(_run(tmp_path, text), 2, "no engine named 'referense'")


def test_a_prompt_file_that_is_missing(tmp_path: Path, tiny_target: TargetFolder) -> None:
    text = f"[target]\npath = '{tiny_target.path}'\n[synthesize]\nprompts = ['none.jsonl']\n"
    assert "none.jsonl" in _error(_run(tmp_path, text), 2, "a file that the run needs is missing")


def test_a_wrong_line_of_prompts(tmp_path: Path, tiny_target: TargetFolder) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    done = outrider("synthesize", "--target", tiny_target.path, "--prompts", tmp_path / "prompts.jsonl", "--out", tmp_path / "out")
    assert f"{tmp_path / 'prompts.jsonl'}:2:" in _error(done, 2, "the prompt file has a line that is not JSON")


# --- targets -------------------------------------------------------------------------------------------------------------


def test_a_target_that_is_missing(tmp_path: Path) -> None:
    assert "outrider target import" in _error(_run(tmp_path, "[target]\npath = 'none'\n"), 2, "no target at")


def test_a_target_whose_config_is_not_json(tmp_path: Path, tiny_target: TargetFolder) -> None:
    folder = _copy(tiny_target, tmp_path / "target")
    (folder / "config.json").write_text("{")
    assert "config.json" in _error(_run(tmp_path, "[target]\npath = 'target'\n"), 2, "the target's config is not valid JSON")


def test_a_target_whose_weights_are_cut_off(tmp_path: Path, tiny_target: TargetFolder) -> None:
    weights = _copy(tiny_target, tmp_path / "target") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert str(weights) in _error(_run(tmp_path, "[target]\npath = 'target'\n"), 2, "model.safetensors is truncated or damaged")


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF" + bytes(200), b"nonsense" * 100])
def test_a_gguf_file_that_is_cut_off(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    _error(outrider("target", "import", tmp_path / "model.gguf", tmp_path / "out"), 2, "cannot be read as GGUF")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_source_that_is_no_model(tmp_path: Path) -> None:
    _error(outrider("target", "import", tmp_path, tmp_path / "out"), 2, "neither a GGUF file nor a model folder")
    assert list(tmp_path.iterdir()) == []


# --- what does not belong together -----------------------------------------------------------------------------------------


def test_a_port_that_is_taken(tmp_path: Path, tiny_target: TargetFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = outrider("serve", "--target", tiny_target.path, "--port", str(port), "--log", tmp_path / "log")
    assert "another port" in _error(done, 3, f"port {port} is taken")


def test_serving_the_drafter_of_another_target(tmp_path: Path, tiny_target: TargetFolder, wider: TargetFolder) -> None:
    drafter = write_drafter(random_drafter(tiny_target), tmp_path / "drafter")
    pair = ("serve", "--target", wider.path, "--drafter", drafter, "--port", "0", "--log", tmp_path / "log")
    assert "target states of width" in outrider(*pair).stderr
    done = outrider(*pair, "--force")
    assert done.returncode == 3 and "the drafter is for another target" in done.stderr  # the engine's own words are the evidence


def test_replaying_the_drafter_of_another_target(tmp_path: Path, tiny_target: TargetFolder, wider: TargetFolder) -> None:
    drafter = write_drafter(random_drafter(tiny_target), tmp_path / "drafter")
    done = outrider("replay", "--target", wider.path, "--drafter", drafter, "--store", _store(tmp_path / "store", wider))
    _error(done, 2, "another target")


def test_a_store_of_another_target(tmp_path: Path, tiny_target: TargetFolder, wider: TargetFolder, store: Path) -> None:
    _error(
        outrider("train", "--target", wider.path, "--store", store, "--out", tmp_path / "out"), 2, "the store holds another target's states"
    )
    drafter = write_drafter(random_drafter(wider), tmp_path / "drafter")
    _error(outrider("replay", "--target", wider.path, "--drafter", drafter, "--store", store), 2, "the store holds another target's states")


def test_replay_with_other_layers(tmp_path: Path, tiny_target: TargetFolder, store: Path) -> None:
    drafter = write_drafter(random_drafter(tiny_target, (2, 3, 4)), tmp_path / "drafter")
    text = _error(outrider("replay", "--target", tiny_target.path, "--drafter", drafter, "--store", store), 2, "states of other layers")
    assert "[2, 3, 4]" in text and str(list(TINY_AUX_LAYERS)) in text


def test_a_store_that_is_not_complete(tmp_path: Path, tiny_target: TargetFolder, store: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    manifest = json.loads((store / MANIFEST_FILE).read_text())
    (tmp_path / "store" / MANIFEST_FILE).write_text(json.dumps(manifest | {"is_complete": False}))
    done = outrider("train", "--target", tiny_target.path, "--store", tmp_path / "store", "--out", tmp_path / "out")
    _error(done, 2, "the store is not complete")


def test_options_that_cannot_be(tmp_path: Path, tiny_target: TargetFolder, store: Path) -> None:
    target, answers = ("--target", tiny_target.path), ("--answers", store.with_suffix(".jsonl"))
    _error(outrider("extract", *target, *answers, "--out", tmp_path / "o", "--dtype", "float64"), 2, "no dtype named 'float64'")
    _error(outrider("extract", *target, *answers, "--out", tmp_path / "o", "--aux-layers", "1,x"), 2, "is not a list of layers")
    _error(outrider("extract", *target, *answers, "--out", tmp_path / "o", "--aux-layers", "1,9"), 2, "aux layer 9 is outside the target")
    _error(outrider("train", *target, "--store", store, "--out", tmp_path / "o", "--epochs", "0"), 2, "wrong value for epochs")
    _error(outrider("measure", *target, "--prompts", "x.jsonl", "--out", tmp_path / "o"), 2, "measure needs two arms")


@pytest.mark.parametrize("option", [("--max-length", "0"), ("--shard-tokens", "-5")])
def test_a_size_that_is_not_positive(tmp_path: Path, tiny_target: TargetFolder, store: Path, option: tuple[str, str]) -> None:
    answers = ("--answers", store.with_suffix(".jsonl"))
    done = outrider("extract", "--target", tiny_target.path, *answers, "--out", tmp_path / "out", "--aux-layers", "1,3,5", *option)
    assert done.returncode == 2, done.stdout
    assert "unexpected" not in done.stderr and "Traceback" not in done.stderr


def test_an_answering_dtype_that_is_none(tmp_path: Path, tiny_target: TargetFolder) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    prompts = ("--prompts", tmp_path / "prompts.jsonl")
    done = outrider("synthesize", "--target", tiny_target.path, *prompts, "--out", tmp_path / "out", "--dtype", "float64")
    _error(done, 2, "no dtype named 'float64'")


# --- a disk that is full -----------------------------------------------------------------------------------------------------

_Resize = Callable[[str], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, _Resize]]:
    """A file system of its own, and a function that sets its size."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)

    try:
        yield place, resize
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_extract_on_a_full_disk(tmp_path: Path, tiny_target: TargetFolder, small_disk: tuple[Path, _Resize]) -> None:
    disk, resize = small_disk
    answers = _answers(tmp_path / "answers.jsonl", tiny_target, 20)
    command: list[str | Path] = [
        "extract",
        "--target",
        tiny_target.path,
        "--answers",
        answers,
        "--out",
        disk / "store",
        "--aux-layers",
        "1,3,5",
    ]
    command += ["--dtype", "float32", "--compute-dtype", "float32", "--shard-tokens", "1"]  # a shard for each row
    assert "GB" in _error(outrider(*command), 2, "the states need")  # seen before anything is computed
    resize("624k")  # room for the states, not for all that stands around them
    _error(outrider(*command), 2, "no space left on the disk")
    finished = json.loads((disk / "store" / MANIFEST_FILE).read_text())
    assert not finished["is_complete"] and len(finished["shards"]) > 5
    assert not list((disk / "store").glob(".*.tmp"))
    first = (disk / "store" / "shard-00000.safetensors").stat().st_mtime_ns
    resize("4m")
    done = outrider(*command)
    assert done.returncode == 0, done.stderr
    assert (disk / "store" / "shard-00000.safetensors").stat().st_mtime_ns == first
    assert len(Store(disk / "store")) == 20


def test_train_on_a_full_disk(tiny_target: TargetFolder, store: Path, small_disk: tuple[Path, _Resize]) -> None:
    disk, resize = small_disk
    resize("1200k")  # one checkpoint, not two: the new one is written beside the old one
    command: list[str | Path] = ["train", "--target", tiny_target.path, "--store", store, "--out", disk / "out"]
    command += ["--draft-vocab-size", "200", "--epochs", "8", "--ttt-steps", "2", "--held-out-fraction", "0"]
    text = _error(outrider(*command), 2, "no space left on the disk")
    assert "checkpoint.pt" in text and "continues" in text
    assert [path.name for path in sorted((disk / "out").iterdir())] == ["checkpoint.pt", "metrics.jsonl"]
    resize("8m")
    done = outrider(*command)
    assert done.returncode == 0, done.stderr
    assert "continues at 1 of 8 steps" in done.stderr
    steps = [row["step"] for row in read_rows(disk / "out" / "metrics.jsonl") if "loss" in row]
    assert steps == list(range(1, 9))


def test_export_on_a_full_disk(tmp_path: Path, tiny_target: TargetFolder, store: Path, small_disk: tuple[Path, _Resize]) -> None:
    disk, resize = small_disk
    trained = outrider(
        "train", "--target", tiny_target.path, "--store", store, "--out", tmp_path / "t", "--epochs", "1", "--ttt-steps", "1"
    )
    assert trained.returncode == 0, trained.stderr
    command = ("export", "--checkpoint", tmp_path / "t" / "checkpoint.pt", "--target", tiny_target.path, "--out", disk / "drafter")
    _error(outrider(*command), 2, "no space left on the disk")
    resize("8m")
    done = outrider(*command)
    assert done.returncode == 0, done.stderr
    assert (disk / "drafter" / "model.safetensors").exists()


def test_synthesize_on_a_full_disk(tmp_path: Path, tiny_target: TargetFolder, small_disk: tuple[Path, _Resize]) -> None:
    disk, resize = small_disk
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Is road {n} clear?"}) + "\n" for n in range(20)))
    command: list[str | Path] = ["synthesize", "--target", tiny_target.path, "--prompts", tmp_path / "prompts.jsonl", "--out", disk / "out"]
    command += ["--max-tokens", "16", "--dtype", "float32", "--concurrency", "4"]
    _error(outrider(*command), 2, "no space left on the disk")
    resize("4m")
    done = outrider(*command)
    assert done.returncode == 0, done.stderr
    assert len(read_rows(disk / "out" / "training" / "answers.jsonl")) == 20


# --- what computes is not loaded for what does not compute ---------------------------------------------------------------------

_LOADED = """
import sys
from outrider.cli.main import main
sys.argv = ["outrider", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print(end.code, *sorted({"torch", "transformers", "numpy"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["run", "--help"], 0),
        (["train", "--help"], 0),
        (["target", "import", "--help"], 0),
        (["init", "new.toml"], 0),
        (["run", "none.toml"], 2),
        (["run", "wrong.toml"], 2),
        (["report", "."], 2),
        (["no-such-command"], 2),
    ],
)
def test_what_does_not_compute_loads_no_torch(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "wrong.toml").write_text("[target]\npaht = 'x'\n")
    command = [sys.executable, "-c", _LOADED, *arguments]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == str(code), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_init_writes_a_configuration_and_never_over_another(tmp_path: Path) -> None:
    done = outrider("init", "run.toml", cwd=tmp_path)
    assert done.returncode == 0 and "[target]" in (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text("mine")
    _error(outrider("init", "run.toml", cwd=tmp_path), 2, "exists already")
    assert (tmp_path / "run.toml").read_text() == "mine"


# --- a fault of our own ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_a_run", [True, False])
def test_an_unexpected_error_names_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_in_a_run: bool
) -> None:
    monkeypatch.setattr(RunFolder, "active", tmp_path if is_in_a_run else None)
    try:
        raise ZeroDivisionError("a fault of ours")
    except ZeroDivisionError as error:
        with pytest.raises(SystemExit) as ended:
            command_line._leave_unexpected(error)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: unexpected ZeroDivisionError: a fault of ours\n") and "Traceback" not in said
    log = Path(said.splitlines()[-1].removeprefix("  log       "))
    assert (log.parent == tmp_path) is is_in_a_run
    assert "Traceback" in log.read_text() and "a fault of ours" in log.read_text()
