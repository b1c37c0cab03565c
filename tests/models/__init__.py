"""Programs that are modelled on what other people run, and on what they report."""
