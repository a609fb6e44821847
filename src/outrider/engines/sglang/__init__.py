"""SGLang, on GPUs."""

from outrider.engines.engine import Distribution, Engine
from outrider.engines.sglang.counting import acceptance, answer_acceptance, counters
from outrider.engines.sglang.launch import launch
from outrider.engines.sglang.log_rules import LOG
from outrider.engines.sglang.source_facts import facts_of

ENGINE = Engine(
    id="sglang",
    distributions=(Distribution("sglang", imports="sglang"),),
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
