"""Engines that serve a target with a drafter beside it: one folder each; none is imported, all are started."""

PLUGINS_ARE_FOLDERS = True
