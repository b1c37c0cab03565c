"""Boolean masks that select, and their lowering to tensors of known size."""
