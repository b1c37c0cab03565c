"""Private names around graphs: sizes, fake tensors, operators, the dispatcher."""
