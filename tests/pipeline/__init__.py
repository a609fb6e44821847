"""Tests of the whole job, and what they share."""
