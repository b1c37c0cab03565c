"""Programs modelled on public reports about branches and loops on tensors."""
