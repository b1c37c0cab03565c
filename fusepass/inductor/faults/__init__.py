"""Silent wrong results of Inductor and AOTAutograd, and how graphs are steered round them.

One file per means: an operator's own kernel in the place of Inductor's code (``aten_kernels``), the
same value by other operators (``rewrites``), a rounding that it leaves out (``roundings``), a copy
that Inductor would take away (``copies``), a value that the backward must not compute again
(``recomputed_writes``), a pattern of Inductor's that must not match (``steer``), values looked at
first (``value_checks``), and a graph that is run op by op (``op_by_op``). Each row names the public
reports it is about, and acts on graphs with that pattern only. ``call_facts`` holds what several
predicates ask of a call. Faults that are mended inside Inductor are in ``torch_private``
(``generated_code``). ``docs/limits.md`` lists all of them.
"""
