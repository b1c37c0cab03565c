"""Keep gradients that are ``None`` and aliases of tensors as they are in eager."""
