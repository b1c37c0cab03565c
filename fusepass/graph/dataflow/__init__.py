"""What calls write and read, which memory values share, which values are equal."""
