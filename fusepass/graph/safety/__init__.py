"""What may fail, and what a selection does to gradients and to saved memory."""
