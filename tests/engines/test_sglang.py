"""SGLang's plug-in without SGLang: its command line, its log, its counts. Real logs where there are some, else its own wording."""

import random
import re
from pathlib import Path

import pytest

from outrider.core.results import Acceptance
from outrider.engines.engine import Answer, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.root_cause import root_cause, without_prefix
from outrider.engines.sglang import ENGINE

_LOGS = Path(__file__).parent / "logs"
_K = 3
_ENVIRONMENT = Environment("x", "sglang", "sglang", "0.5.10", Path("/opt/sglang/bin/python"), Path("/opt/sglang"), ours=False)


def _spec(drafter: Path | None, threads: int | None = None) -> ServeSpec:
    return ServeSpec(Path("target"), drafter, _K, "bfloat16", 8000, max_batch=16, threads=threads, extra_args=("--tp-size", "2"))


# --- the command line -------------------------------------------------------------------------------------------------


def test_both_arms_are_started_alike_but_for_the_drafter() -> None:
    plain, drafting = (ENGINE.launch(_ENVIRONMENT, _spec(drafter)).command for drafter in (None, Path("drafter")))
    assert plain[:5] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "target"]
    assert plain[plain.index("--max-running-requests") + 1] == "16" and "--enable-metrics" in plain
    assert plain[-2:] == drafting[-2:] == ["--tp-size", "2"]
    speculative = drafting[len(plain) - 2 : -2]
    assert drafting[: len(plain) - 2] == plain[:-2]
    assert dict(zip(speculative[::2], speculative[1::2], strict=True)) == {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "drafter",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
    }


def test_threads_are_passed_on_only_where_they_are_named() -> None:
    assert "OMP_NUM_THREADS" not in ENGINE.launch(_ENVIRONMENT, _spec(None)).env
    assert ENGINE.launch(_ENVIRONMENT, _spec(None, threads=4)).env["OMP_NUM_THREADS"] == "4"


# --- the log ----------------------------------------------------------------------------------------------------------


def _fatal(log: str) -> list[str]:
    return [
        line
        for line in log.splitlines()
        for rule in ENGINE.log.fatal
        if rule.literal in line and re.search(rule.pattern, without_prefix(line))
    ]


def test_a_real_log_of_a_server_that_was_well_has_no_cause(shared: Path) -> None:
    whole = [(shared / "logs" / f"sglang-0.5.16-h200-{kind}-ready.log").read_text(errors="replace") for kind in ("plain", "eagle3")]
    for log in [*whole, (_LOGS / "sglang-0.5.16-eagle3-ready.log").read_text()]:
        assert root_cause(log, ENGINE.log.failures) is None
        assert _fatal(log) == []


def test_a_real_log_of_a_target_that_is_not_there() -> None:
    log = (_LOGS / "sglang-0.5.16-model-path-missing.log").read_text()
    found = root_cause(log, ENGINE.log.failures)
    assert found is not None
    assert found.title == "there is no model at /models/smol135"
    assert _fatal(log) == []  # its process ends by itself


def test_a_line_is_read_without_its_time_and_rank() -> None:
    assert without_prefix("[2026-12-01 02:07:52 TP0 EP0] Load weight begin.") == "Load weight begin."
    assert without_prefix("[2026-12-01 02:07:52] Load weight begin.") == "Load weight begin."
    assert without_prefix("[rank0]: Load weight begin.") == "Load weight begin."


def _of_scheduler(exception: str) -> str:
    """A scheduler that fails, and what its parent says, in SGLang's wording."""
    return (
        "[2026-12-01 02:07:51 TP0] Load weight begin. avail mem=139.09 GB\n"
        "[2026-12-01 02:07:52 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/engine/site-packages/sglang/srt/managers/scheduler.py", line 2630, in run_scheduler_process\n'
        "    scheduler = Scheduler(server_args, port_args)\n"
        f"{exception}\n"
        "\n"
        "[2026-12-01 02:07:52] Received sigquit from a child process. It usually means the child failed.\n"
    )


@pytest.mark.parametrize(
    ("exception", "title"),
    [
        (
            "AttributeError: 'DeepseekV3ForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
            "its class DeepseekV3ForCausalLM for this target cannot hand out what the drafter reads",
        ),
        (
            "ValueError: Model MambaForCausalLM does not implement set_eagle3_layers_to_capture, which EAGLE3 requires.",
            "its class MambaForCausalLM for this target cannot hand out what the drafter reads",
        ),
        (
            "AttributeError: 'Qwen2MoeForCausalLM' object has no attribute 'get_embed_and_head'",
            "its class Qwen2MoeForCausalLM for this target cannot hand out what the drafter reads",
        ),
        (
            "ValueError: Cannot find model module. 'Eagle3LlamaForCausalLM' is not a registered model in the Transformers library",
            "it does not know the architecture Eagle3LlamaForCausalLM",
        ),
        (
            "AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'",
            "the drafter's config does not say how large its vocabulary is",
        ),
        ("ValueError: EAGLE3 currently only supports 1 layer", "it builds drafters of one layer only"),
        (
            "ValueError: Warning: Target model's context_length (8192) is greater than the derived context_length (2048). This may lead to",
            "it is to serve 8192 tokens, and a model's config stops at 2048: the drafter's, if the target's is longer",
        ),
        (
            "AssertionError: Attempted to load weight (torch.Size([576])) into parameter (torch.Size([1728]))",
            "a tensor has shape torch.Size([576]), its config asks for torch.Size([1728])",
        ),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x2880 and 8640x2880)",
            "states of shape 4x2880 meet weights of shape 8640x2880",
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.1",
            "out of memory: none is left for the KV cache",
        ),
        (
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried",
            "out of memory: Capture cuda graph failed: CUDA out of memory. Tried",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "out of memory: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        ("ModuleNotFoundError: No module named 'flashinfer'", "it cannot be imported: No module named 'flashinfer'"),
        ("ValueError: something that is not known", "ValueError: something that is not known"),
    ],
)
def test_what_a_scheduler_says_is_the_cause(exception: str, title: str) -> None:
    log = _of_scheduler(exception)
    found = root_cause(log, ENGINE.log.failures)
    assert found is not None
    assert found.title == title
    assert len(_fatal(log)) == 2


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use\n",
            "its port is taken",
        ),
        ("launch_server.py: error: unrecognized arguments: --new-flag 3\n", "this version does not know the arguments --new-flag 3"),
        (
            "launch_server.py: error: argument --speculative-algorithm: invalid choice: 'DFLASH' (choose from 'EAGLE')\n",
            "this version does not know the algorithm",
        ),
        (
            'Traceback (most recent call last):\n  File "x.py", line 1, in check\n'
            "AssertionError: Pipeline parallelism is not compatible with overlap schedule, speculative decoding\n",
            "it does not draft over pipeline stages",
        ),
        (
            "[2026-12-01 02:07:52] Subprocess scheduler_0 (pid=1700) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
            "[2026-12-01 02:07:52] SIGQUIT received. signum=3, frame=None. It usually means one child failed.\n",
            "one of its processes died",
        ),
    ],
)
def test_what_its_launcher_says_is_the_cause(log: str, title: str) -> None:
    found = root_cause(log, ENGINE.log.failures)
    assert found is not None
    assert found.title == title
    assert bool(_fatal(log)) == (not log.startswith("Traceback"))


# --- its counts -------------------------------------------------------------------------------------------------------

_METRICS = """# HELP sglang:spec_accept_length The average acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="target",tp_rank="0"} 1.75
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="target"} 78.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="target"} 190.0
"""


def test_verify_steps_alone_tell_no_acceptance() -> None:
    found = ENGINE.counters(_METRICS)
    assert found == {"sglang:spec_verify_calls_total": 78.0}
    assert ENGINE.acceptance(found) is None


def _answer(tokens: int, histogram: object, steps: int, k: int = _K) -> Answer:
    told = {"spec_verify_ct": steps, "spec_correct_drafts_histogram": histogram}
    return Answer(list(range(tokens)), 1000, (), k, told, None)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (11, Acceptance(num_verify_steps=4, num_draft_tokens=12, num_accepted_tokens=6, accepted_at=(3, 2, 1))),  # nothing was cut
        (
            10,
            Acceptance(num_verify_steps=4, num_draft_tokens=12, num_accepted_tokens=6, accepted_at=(3, 2, 1)),
        ),  # the target's own token was
        (9, Acceptance(num_verify_steps=4, num_draft_tokens=11, num_accepted_tokens=5, accepted_at=(3, 2, 0))),  # and a draft
    ],
)
def test_an_answers_own_counts_without_what_lies_past_its_stop(tokens: int, expected: Acceptance) -> None:
    assert ENGINE.answer_acceptance(_answer(tokens, [1, 1, 1, 1], 4)) == expected


@pytest.mark.parametrize("metrics", [None, {}, {"spec_verify_ct": 4}, {"spec_verify_ct": 5, "spec_correct_drafts_histogram": [1, 1, 1, 1]}])
def test_an_answer_without_counts_or_without_all_of_them_has_none(metrics: dict[str, object] | None) -> None:
    assert ENGINE.answer_acceptance(Answer(list(range(11)), 1000, (), _K, metrics, {"sglang:spec_verify_calls_total": 4.0})) is None


def test_a_histogram_gives_the_same_as_the_steps_one_by_one() -> None:
    rng = random.Random(0)
    for _ in range(300):
        steps = [rng.randint(0, _K) for _ in range(rng.randint(1, 12))]
        cut = rng.randint(0, steps[-1])  # tokens of the last step that lie past the stop
        answer = _answer(1 + len(steps) + sum(steps) - cut, [steps.count(n) for n in range(_K + 1)], len(steps))
        found = ENGINE.answer_acceptance(answer)
        assert found is not None
        past_the_stop = max(0, cut - 1)
        assert (found.num_verify_steps, found.num_accepted_tokens) == (len(steps), sum(steps) - past_the_stop)
        assert found.num_draft_tokens == _K * len(steps) - past_the_stop
