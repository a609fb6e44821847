"""From a training checkpoint to the folder that engines load."""
