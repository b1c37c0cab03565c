"""The table of issue 5: programs that make the device wait, and what must come of each line."""
