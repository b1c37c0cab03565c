"""Silent wrong results of Inductor and AOTAutograd, and how graphs are steered round them.

One file per means: an operator's own kernel in the place of Inductor's code (``own_kernels``), the
same value by other operators (``rewrites``), a rounding that it leaves out (``roundings``), a copy
that Inductor would take away (``copies``), a pattern of Inductor's that must not match (``steer``),
values looked at first (``checks``), and a graph that is run op by op (``op_by_op``). Each row names
the public reports it is about, and acts on graphs with that pattern only. What is mended where it
arises, inside Inductor, is in
``torch_private`` (``generated_code``). ``docs/limits.md`` lists all of them.
"""
