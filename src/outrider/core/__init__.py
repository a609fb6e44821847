"""What every layer stands on: words, results, configuration, errors, the run folder, processes, HTTP. No torch."""
