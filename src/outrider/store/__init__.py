"""Hidden states on disk: safetensors shards and a manifest that says what they are."""
