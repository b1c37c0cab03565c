"""Facts about FX graphs: canonical operations, effects, totality, leaves, cost."""
