"""Matrix products with the pointwise work around them."""
