"""Wrap private names for graphs: sizes, fake tensors, operators, the dispatcher."""
