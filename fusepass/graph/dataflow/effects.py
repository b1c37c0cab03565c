"""What a call in an FX graph does besides returning a value: writes, draws, state changes."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import IN_PLACE_OPERATORS, argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import cond_operator, schema_mutates

RANDOM_OPS = frozenset(
    """
    bernoulli bernoulli_ binomial cauchy_ dropout alpha_dropout feature_dropout
    feature_alpha_dropout dropout1d dropout2d dropout3d exponential_ geometric_ gumbel_softmax
    log_normal_ multinomial native_dropout normal normal_ poisson rand rand_like randint
    randint_like randn randn_like random_ randperm rrelu uniform_ seed manual_seed initial_seed
    set_rng_state fractional_max_pool2d fractional_max_pool3d scaled_dot_product_attention
    dropout_ alpha_dropout_ feature_dropout_ feature_alpha_dropout_ rrelu_ pca_lowrank svd_lowrank
    _sample_dirichlet _standard_gamma
    """.split()
)
_TRAINING_FLAG = {
    # op: (position, name, default) of the argument that turns the randomness on
    "dropout": (2, "training", True),
    "alpha_dropout": (2, "training", False),
    "feature_alpha_dropout": (2, "training", False),
    "dropout1d": (2, "training", True),
    "dropout2d": (2, "training", True),
    "dropout3d": (2, "training", True),
    "rrelu": (3, "training", False),
}
REPLACES_MEMORY = frozenset(("set_", "shallow_copy_data_"))  # `x.data = y`, from torch 2.15 on
RESHAPES_ITS_OPERAND = REPLACES_MEMORY | frozenset(
    """
    as_strided_ resize_ resize_as_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """.split()
)
_RUNNING_STATISTICS = ("running_mean", "running_var")
# Methods, functions and operators of NumPy's that write what they get first.
_NUMPY_WRITES = frozenset(
    """
    __setitem__ copyto fill fill_diagonal itemset partition place put put_along_axis putmask resize
    sort iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor
    """.split()
)
_STATE_CALLS = frozenset(
    """
    _set_grad_enabled _enter_autocast _exit_autocast _enter_inference_mode _exit_inference_mode
    _enter_dual_level _exit_dual_level set_default_dtype
    """.split()
)


def is_random(node: fx.Node) -> bool:
    """Whether running the node advances a random generator."""
    name = op_name(node)
    if name not in RANDOM_OPS:
        return False
    if name == "scaled_dot_product_attention":
        return bool(argument(node, 4, "dropout_p", 0.0) != 0.0)
    if name in _TRAINING_FLAG:
        training = argument(node, *_TRAINING_FLAG[name])
        return training is not False and bool(argument(node, 1, "p", 0.5) != 0.0)
    return True


def copies_between_devices(node: fx.Node) -> bool:
    """Whether the call copies a tensor to another device, which can make the host wait."""
    result = tensor_value(node)
    source = tensor_value(node.args[0]) if node.args else None
    return source is not None and result is not None and source.device != result.device


def reshapes_its_operand(node: fx.Node) -> bool:
    """Whether the call gives the tensor it is called on another shape or other memory."""
    return op_name(node) in RESHAPES_ITS_OPERAND


def is_state_change(node: fx.Node) -> bool:
    """Whether the node switches grad mode, autocast or inference mode."""
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and name in _STATE_CALLS


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The argument nodes whose memory the call may write; conservative for unknown operators."""
    if node.op == "call_method":
        method = str(node.target)
        if method == "__setitem__" or (method.endswith("_") and not method.endswith("__")):
            return _first_node(node)
        return []
    if node.op == "call_module":
        return list(node.all_input_nodes)
    if node.op != "call_function":
        return []
    target = node.target
    if target in IN_PLACE_OPERATORS or target is operator.setitem:
        return _first_node(node)
    written = _as_nodes(node.kwargs.get("out"))
    if _inplace_flag(node):
        written += _first_node(node)
    mutable = schema_mutates(target)
    if mutable is not None:
        return written + (_schema_writes(node) if mutable else [])
    name = op_name(node)
    if name is None:
        is_select = getattr(target, "fusepass_pure", False) or target is cond_operator()
        return [] if is_select or is_state_change(node) else list(node.all_input_nodes)
    if name.endswith("_") and not name.endswith("__"):
        written += _first_node(node)
    if type(target).__name__.startswith("numpy_"):  # as Dynamo has it in a graph
        called = getattr(target, "__name__", "").removeprefix("wrapped_")
        written += _first_node(node) if called in _NUMPY_WRITES else []
    if name == "instance_norm" or (name == "batch_norm" and _batch_norm_trains(node)):
        written += _as_nodes((*node.args[1:3], *map(node.kwargs.get, _RUNNING_STATISTICS)))
    return written


def _first_node(node: fx.Node) -> list[fx.Node]:
    first = node.args[0] if node.args else node.kwargs.get("input")
    return _as_nodes(first)


def _as_nodes(value: Any) -> list[fx.Node]:
    if isinstance(value, fx.Node):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for entry in value for item in _as_nodes(entry)]
    return []


def _inplace_flag(node: fx.Node) -> bool:
    if "inplace" in node.kwargs:
        return node.kwargs["inplace"] is not False
    position = inplace_position(node.target)
    return 0 <= position < len(node.args) and node.args[position] is not False


@functools.lru_cache(maxsize=4096)
def inplace_position(function: Any) -> int:
    """Where a function takes ``inplace``, -1 if it does not; signatures are slow to read."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return -1
    return names.index("inplace") if "inplace" in names else -1


def _schema_writes(node: fx.Node) -> list[fx.Node]:
    schema = node.target._schema  # type: ignore[union-attr]
    written: list[fx.Node] = []
    for position, spec in enumerate(schema.arguments):
        if spec.alias_info is None or not spec.alias_info.is_write:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(spec.name)
        written += _as_nodes(given)
    return written


def _batch_norm_trains(node: fx.Node) -> bool:
    if node.target is torch.batch_norm:
        return len(node.args) <= 5 or node.args[5] is not False
    return argument(node, 5, "training", False) is not False
