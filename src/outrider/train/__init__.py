"""A drafter from a store of states: EAGLE-3 with training-time test."""
