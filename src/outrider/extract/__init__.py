"""The target's states at the aux layers and the last one, for every token of the answers, into a store."""
