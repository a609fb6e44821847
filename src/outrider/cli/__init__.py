"""The command line: one file a command, each thin; what computes is imported when a command runs."""
