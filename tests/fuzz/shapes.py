"""The shapes of Python that a site can be an example of: what a campaign counts by.

Shares are of the branches for :data:`SHAPES`, of the loops that tensors end for :data:`LOOPS`, of
the round trips for :data:`TRIPS`, and of all of them for :data:`MECHANISMS`.
"""

from __future__ import annotations

SHAPES = {
    # control flow
    "if_else": "if / else",
    "else_less": "if without else",
    "elif": "elif chain",
    "ternary": "conditional expression",
    "bool_chain": "and / or / not of static and tensor terms",
    "operand_value": "the operand that and / or returns is used as a value",
    "compare_chain": "chained comparison",
    "nested": "a branch inside an arm",
    "layer_loop": "in a loop over an nn.ModuleList",
    "range_loop": "in a range loop with carried state",
    "early_return": "an arm returns",
    "return_in_loop": "an arm returns from inside a loop",
    "helper": "in a helper function, or an arm calls one",
    "closure": "in a closure, or an arm calls one",
    "lambda": "in a lambda, or an arm calls one",
    "method": "in a method of another object, or an arm calls one",
    "generator": "in a generator",
    "tensor_loop": "a loop that a tensor ends",
    "try": "try / except around the branch",
    "attempt": "beside an operation that may fail in a try",
    # predicates
    "bool_tensor": "a bool tensor is tested",
    "int_tensor": "an int tensor is tested",
    "float_tensor": "a float tensor is tested",
    "shape_0d": "of shape []",
    "shape_1": "of shape [1]",
    "shape_1_1": "of shape [1, 1]",
    "nan_predicate": "which may be NaN",
    "item": "through .item()",
    "bool_call": "through bool()",
    "int_call": "through int()",
    "float_call": "through float()",
    # what arms leave
    "leaves_tensor": "tensors",
    "leaves_tuple": "a tuple",
    "leaves_list": "a list",
    "leaves_dict": "a dict",
    "leaves_namedtuple": "a namedtuple",
    "leaves_dataclass": "a dataclass",
    "leaves_number": "numbers that feed tensor arithmetic",
    "leaves_constant": "equal constants",
    "leaves_waiting": "another Python value in each arm",
    "leaves_dead": "a variable bound in one arm and dead after",
    # state
    "write_local": "in-place write to a local",
    "write_argument": "to an argument",
    "write_view": "through a view",
    "write_buffer": "to a buffer",
    "write_attribute": "to a tensor attribute",
    "write_both": "in both arms",
    "rebind_attribute": "an attribute is rebound to a tensor",
    "register_buffer": "register_buffer in both arms",
    "masked_store": "masked store guarded by mask.any()",
    "masked_other_guard": "by mask.sum() > 0, not, ~ or a slice",
    "list_mutation": "a list is changed",
    "dict_mutation": "a dict is changed",
    "python_attribute": "a Python attribute is changed",
    # autograd
    "parameter": "parameters in the arms",
    "parameter_one_arm": "a parameter in one arm only",
    "leaf_one_arm": "an argument that requires grad in one arm only",
    "bad_gradient": "NaN or infinite gradient in the arm not taken",
    "no_grad": "no_grad inside an arm",
    "autocast": "autocast inside an arm",
    "custom_function": "autograd.Function inside an arm",
    # randomness
    "dropout": "dropout in an arm",
    "rand_like": "rand_like in an arm",
    "random_after": "random numbers after the branch",
    # exceptions
    "raise": "an arm raises with formatted text",
    "assert": "bare assert",
    "assert_message": "assert with a message",
    "raise_before_partial": "a raise guards a partial operation",
    "raise_between_writes": "a raise with in-place writes before and after",
    "raises_in_order": "several raises in order",
    # text, and operations that can fail
    "print_arm": "print in an arm",
    "print_outside": "print outside the arms",
    "partial_index": "index_select, gather or indexing in an arm",
    "partial_division": "integer division in an arm",
    # what is handed over
    "shared_memory": "two arguments, or one and the module's state, share memory",
    "subclass": "an argument is a subclass of torch.Tensor",
}

LOOPS = {
    # how they end
    "loop_while": "while on a tensor alone",
    "loop_bounded": "while on a tensor and a counter",
    "loop_flag": "while on a flag and a counter",
    "loop_forever": "while True, with a break on a tensor",
    "loop_for": "for over a range, with a break or return on a tensor",
    # what a round does
    "loop_continue": "continue",
    "loop_branch": "a branch, a raise or another site in a round",
    "loop_inner": "a loop in a round",
    "loop_effect": "an effect, a write or an operation of its own kind, as in arms",
    "loop_leaf": "a parameter or an argument that requires grad",
    "loop_changes_type": "a value changes its dtype or shape",
    "loop_writes": "an in-place write",
    "loop_number": "a Python number changes",
    "loop_trip": "a round trip",
    "loop_from_none": "a value is None before the first round",
    # what follows
    "loop_counter": "the number of rounds is used",
    "loop_else": "else",
    "loop_return": "a round returns",
}

TRIPS = {
    # how numbers are read
    "read_item": ".item()",
    "read_float": "float()",
    "read_int": "int()",
    "read_bool": "bool()",
    "read_tolist": ".tolist()",
    "number_of_low": "of a tensor of half precision",
    "number_of_int": "of a tensor of integers or truth values",
    "number_given": "beside a number that the caller hands over",
    # where they go
    "number_operand": "into arithmetic and comparisons with tensors",
    "number_argument": "into arguments such as clamp's and alpha",
    "number_written": "into an in-place operation or a store",
    "number_low": "beside a tensor of another dtype or without axes",
    "number_arithmetic": "through arithmetic of numbers",
    "number_partial": "through arithmetic that not every number has a result of",
    "number_kept": "where Python needs the number: sizes, keys, strings, attributes",
    "number_tested": "into a test and into arithmetic",
    "number_moment": "the tensor is written after it was read",
    # text
    "print_tensor": "a tensor is printed",
    "print_number": "numbers of a tensor are printed",
    "print_formatted": "text made of tensors is printed",
    "print_container": "containers of tensors are printed",
    "logged": "a log record is made",
    "warned": "a warning is given",
    "print_moment": "the tensor, or its base, is written after it was printed",
    "print_between": "another visible effect stands between two prints",
    # boolean masks
    "mask_store": "x[mask] = v",
    "mask_update": "x[mask] op= v",
    "mask_reduction": "a reduction of x[mask]",
    "mask_count": "how many are selected",
    "mask_kept": "the selection itself is used",
    "mask_moment": "mask or tensor is written before the selection is used",
    # tensors made on the host
    "host_factory": "a factory on the CPU, moved",
    "host_literal": "torch.tensor of literals, moved",
    "host_mask": "a mask built on the CPU, moved",
    "host_random": "random numbers of the CPU, moved",
}

MECHANISMS = {
    "waiting join": frozenset(("leaves_waiting",)),
    "effect": frozenset(
        ("rebind_attribute", "list_mutation", "dict_mutation", "python_attribute", "print_arm")
    ),
    "loop": frozenset(("tensor_loop",)),
    "leaf in one arm": frozenset(("parameter_one_arm", "leaf_one_arm")),
}
