"""Slow, obviously right implementations that the fast ones are tested against."""
