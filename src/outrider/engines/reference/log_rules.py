"""What the reference engine says: nothing while all is well, and an error of Outrider, or a traceback, before it ends."""

from typing import Final

from outrider.engines.host_failures import HOST_FAILURES, HOST_FATAL
from outrider.engines.log_rules import LineRule, LogFailure, LogRules

LOG: Final = LogRules(
    failures=(
        LogFailure(
            r"OutOfMemoryError: (.+)|DefaultCPUAllocator: (.+)",
            "out of memory: {0}",
            "a smaller target, bfloat16, or fewer requests at once",
            "out-of-memory",
        ),
        *HOST_FAILURES,
        LogFailure(r"^error: (.+?)(?:; |$)", "{0}", "", "refused"),
    ),
    fatal=(LineRule("error: ", r"^error: "), *HOST_FATAL),
)
