"""One name and one list of arguments for each operation, however it was written."""
