"""Operations that give the same bits on every device.

Three sorts are the same wherever they run, op by op or inside a generated kernel: those that only
place elements, comparisons and logic, and arithmetic that rounds nothing because it is known which
numbers come in (:mod:`fusepass.host_tensors.value_sets`). ``EXCLUDED`` says of the rest why not.
"""

from __future__ import annotations

import torch

FILLS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
    "empty": None, "empty_like": None, "new_empty": None,
}  # fmt: skip
FULL = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}  # where the number stands
FACTORIES = frozenset([*FILLS, *FULL, "arange", "eye"])
# Look at their first operand for its shape, dtype and device only.
LIKE = frozenset(name for name in FACTORIES if name.endswith("_like") or name.startswith("new_"))
CASTS = frozenset(
    """ to type type_as float double half bfloat16 int long short char byte bool cpu as_tensor
    asarray contiguous clone detach alias pin_memory """.split()
)
PLACES = frozenset(
    """ view view_as reshape reshape_as expand expand_as broadcast_to unsqueeze squeeze permute
    transpose t T mT select narrow flatten unflatten ravel movedim repeat tile flip fliplr flipud
    roll diagonal chunk split unbind cat stack hstack vstack meshgrid broadcast_tensors """.split()
)
FROM_NUMBER = ("tensor", "as_tensor", "asarray")
COMPARISONS = frozenset("eq ne lt le gt ge".split())
LOGIC = frozenset("logical_and logical_or logical_xor logical_not".split())
BITS = frozenset("bitwise_and bitwise_or bitwise_xor bitwise_not".split())
ARITHMETIC = frozenset("add sub mul minimum maximum".split())
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = {*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
NARROW = (torch.float16, torch.bfloat16)
_STEPS = "each device adds up its steps in an order of its own"
_LIBRARY = "each device has a math library of its own"
EXCLUDED = {
    **dict.fromkeys("linspace logspace".split(), _STEPS),
    **dict.fromkeys(
        """ exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid sqrt rsqrt pow erf softmax
        log_softmax atan2 outer hypot """.split(),
        _LIBRARY,
    ),
    "div": "CUDA divides by a number through its reciprocal",
    "reciprocal": "CUDA divides by a number through its reciprocal",
    **dict.fromkeys(
        "matmul mm bmm addmm linear einsum mean std var norm prod cumprod".split(),
        "sums are added up in another order on each device",
    ),
    **dict.fromkeys(
        "index_select gather index_put index_add scatter one_hot bincount embedding".split(),
        "an index out of range raises on the host and stops a device",
    ),
    **dict.fromkeys(
        "nonzero masked_select unique argwhere".split(),
        "the size of its result depends on data, for which a device makes the host wait",
    ),
    **dict.fromkeys(
        "tril_indices triu_indices".split(), "compiled code takes them from square roots"
    ),
}


# Operations that differ by rounding alone, which does not matter to random numbers.
ROUNDED = frozenset(
    [
        *(name for name, why in EXCLUDED.items() if why in (_STEPS, _LIBRARY)),
        *ARITHMETIC,
        *"div reciprocal mean std var neg abs clamp".split(),
    ]
)


class Inexact(Exception):
    """An operation that may give other bits on another device; the text says why."""
