"""Target models: one file a family, naming where things are in it; plus the folder, its import and its states."""

SEAMS = ("cpu", "family", "folder", "importing", "model", "weights")
