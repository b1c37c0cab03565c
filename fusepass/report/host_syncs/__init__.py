"""Where a program makes the host wait for the device: found, explained, counted, timed."""
