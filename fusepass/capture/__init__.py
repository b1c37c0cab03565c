"""Station 1: capture branches on a tensor inside Dynamo, so that they do not break the graph."""
