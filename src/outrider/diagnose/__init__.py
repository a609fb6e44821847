"""The verdict: does the engine accept what the drafter's own numbers allow, and if it does not pay, why."""
