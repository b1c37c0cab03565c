"""Wrap private names of Dynamo: hooks, tracked values, guards, frames."""
