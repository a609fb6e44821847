"""Prompts in, the target's own answers out: token ids, what was written by the target, why it stopped."""
