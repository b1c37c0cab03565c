"""The fuzzer of programs: what it draws, what it sees, and a small campaign."""
