"""The checks: one file each, whose name is the check's id; each defines one CHECK."""
