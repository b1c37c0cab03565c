"""Matrix products with an epilogue."""
