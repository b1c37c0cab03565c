"""Silent wrong results of Inductor and AOTAutograd, and how graphs are steered round them.

One file per means: an operator's own kernel in the place of Inductor's code (``own_kernels``), the
same value by other operators (``rewrites``), a copy that Inductor would take away (``copies``), and
a graph that is run op by op (``op_by_op``). Each row names the public reports it is about. What
cannot be steered yet is in ``known``, and met with a warning. A fault of Inductor's that is mended
where it arises is in ``torch_private`` (``scheduling``, ``onednn``).
"""
