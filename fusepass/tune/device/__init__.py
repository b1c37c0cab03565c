"""What a device is called and what it reaches."""
