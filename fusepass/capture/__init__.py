"""Station 1: branches on a tensor, captured inside Dynamo instead of breaking the graph."""
