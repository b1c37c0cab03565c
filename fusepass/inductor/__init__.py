"""Hand-off to Inductor, passes after autograd, settings tried, compiles tried again."""
