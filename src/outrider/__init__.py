"""Outrider: from a served target model to a drafter that measurably speeds it up."""

import os

__version__ = "0.1.0"

# Threads of torch's CPU kernels wait for each other by spinning. Where another process wants the same core (a server
# beside its client), a spinning thread keeps the one it waits for from running: steps were seen to take 20 times as
# long. libgomp reads this when torch is imported, and children inherit it.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
