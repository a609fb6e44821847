"""What a run came to: the verdict, the numbers behind it and where they come from, in the terminal and as one HTML page."""
