"""The demo's own prompts and configuration."""
