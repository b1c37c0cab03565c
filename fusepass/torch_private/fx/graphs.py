"""Read and edit graphs, symbolic sizes and operators. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.dynamo.errors.wording import plain

_FRAME = re.compile(r'File "(.+)", line (\d+), in ')  # of a stack that Dynamo writes down
_TORCH = f"{Path(torch.__file__).parent}/"


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of nested tuples, lists, dicts and slices (FX argument lists).

    fx.map_arg cannot tell one occurrence of a node from the next; this can.
    """
    from torch.utils import _pytree

    return _pytree.tree_flatten(_without_slices(tree))


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Inverse of :func:`tree_flatten`."""
    from torch.utils import _pytree

    return _with_slices(_pytree.tree_unflatten(leaves, spec))


def _without_slices(tree: Any) -> Any:
    if isinstance(tree, slice):
        return {"fusepass_slice": (tree.start, tree.stop, tree.step)}
    if isinstance(tree, (tuple, list)):
        items = [_without_slices(v) for v in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {k: _without_slices(v) for k, v in tree.items()}
    return tree


def _with_slices(tree: Any) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {"fusepass_slice"}:
            return slice(*tree["fusepass_slice"])
        return {k: _with_slices(v) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = [_with_slices(v) for v in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


def call_target(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Make a node's call on values: of a function, or of a method of the first value."""
    if callable(target):
        return target(*args, **kwargs)
    return getattr(args[0], str(target))(*args[1:], **kwargs)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with ``function`` applied to each leaf, inside slices too."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([function(leaf) for leaf in leaves], spec)


def fake_mode_of(gm: fx.GraphModule) -> Any:
    """The mode the fake tensors Dynamo recorded in a graph compute under, or None.

    Not the tracing context's: Dynamo gives backends a fresh mode, its recorded values keep theirs.
    """
    for node in gm.graph.nodes:
        mode = getattr(node.meta.get("example_value"), "fake_mode", None)
        if mode is not None:
            return mode
    return None


def has_specializations(output_graph: Any) -> bool:
    """Whether Dynamo compiles a frame's graph again for sizes of ``specialize_on``, at a call."""
    return bool(output_graph.shape_env.specializations)


def is_backward_graph(graph: fx.Graph) -> bool:
    """Whether an ATen graph is the backward that AOTAutograd split off, by its inputs' names."""
    return any(node.op == "placeholder" and "tangents" in node.name for node in graph.nodes)


def real_input(node: fx.Node) -> Any:
    """What the caller handed over for an input that Dynamo recorded; None if that is not known."""
    try:
        return getattr(node.meta.get("grapharg"), "example", None)
    except ReferenceError:  # a copy, of a graph that Dynamo is done with
        return None


def source_of_input(node: fx.Node) -> Any:
    """Where Dynamo finds an input in each call; None if that is not known."""
    try:
        return getattr(node.meta.get("grapharg"), "source", None)
    except ReferenceError:  # a copy, of a graph that Dynamo is done with
        return None


def input_name(node: fx.Node) -> str:
    """What an input of a graph is in the program, ``self.layer.weight``, or its own name."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", None)
    name = name() if callable(name) else name
    return plain(str(name or node.target), "an input")


def lend_inputs(copied: fx.Graph) -> None:
    """Have a copy of Dynamo's graph know what the caller handed over only while the original does.

    Dynamo lets go of it when the frame is compiled. A copy is in a cycle with its nodes, so it
    would hold on to it, and to weak references to parameters, until garbage is collected.
    """
    for node in copied.nodes:
        held = node.meta.get("grapharg")
        if held is not None and type(held) is not weakref.ProxyType:
            node.meta["grapharg"] = weakref.proxy(held)


def requires_grad_outside(node: fx.Node) -> bool | None:
    """Whether an input required grad when the graph began; None if that is not known."""
    real = real_input(node)
    return real.requires_grad if isinstance(real, torch.Tensor) else None


def source_of(node: fx.Node) -> tuple[str, int]:
    """File and line of the user's code a node came from, ``("", 0)`` when unknown.

    The innermost frame that is not torch's: a subclass, a module or a function of torch may lie in
    between.
    """
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in found if not frame[0].startswith(_TORCH)] or found
    return (own[-1][0], int(own[-1][1])) if own else ("", 0)


def known_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal for every input, decided without adding a guard."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return known_true(left == right)


def known_true(condition: Any) -> bool:
    """Whether a condition on sizes holds for every input, decided without adding a guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def size_hint(size: Any) -> int | None:
    """A size as a number: its hint where it is symbolic, None where it depends on data."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if isinstance(hint, int) else None


def fits_int64(number: torch.SymInt) -> bool:
    """Whether a Python integer that varies fits 64 bits, here and (a guard) in every later call.

    One that is read from a tensor does; sizes do without a guard.
    """
    from torch._dynamo.source import TensorPropertySource
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    environment = number.node.shape_env
    if environment is None or environment.frozen or free_unbacked_symbols(number):
        return True
    sources = environment.var_to_sources
    come = (one for symbol in number.node.expr.free_symbols for one in sources.get(symbol, ()))
    if all(isinstance(source, TensorPropertySource) for source in come):
        return True
    return bool(number >= -(2**63)) and bool(number < 2**63)


def has_unbacked_size(fake: torch.Tensor) -> bool:
    """Whether a size of a fake tensor depends on data, as that of ``nonzero`` does."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(fake))


def storage_key(fake: torch.Tensor) -> int:
    """Identity of the memory behind a (fake) tensor: equal for views of one another.

    A tensor inside a functorch transform, or a sparse one, has no storage to ask for and gets an
    identity of its own.
    """
    try:
        return int(fake.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(fake)


def cond_operator() -> Any:
    """The higher-order operator behind ``torch.cond``."""
    return torch.ops.higher_order.cond


def while_loop_operator() -> Any:
    """The higher-order operator behind ``torch.while_loop``."""
    return torch.ops.higher_order.while_loop


def invoke_subgraph_operator() -> Any:
    """The higher-order operator that calls a subgraph; calls of one subgraph are compiled once."""
    return torch.ops.higher_order.invoke_subgraph


def operator_name(target: Any) -> tuple[str, str] | None:
    """``(namespace, name)`` of a registered operator or one of its overloads, else None."""
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return None
    namespace, _, name = target._qualified_op_name.partition("::")
    return namespace, name


def higher_order_name(target: Any) -> str | None:
    """Name of an operator that is given functions or graphs, as ``torch.cond`` is, else None."""
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else None


def function_of_operator(value: Any) -> Any:
    """The Python function behind what ``torch.library.custom_op`` made; None for anything else."""
    return getattr(value, "_init_fn", None)


def source_of_kernel(value: Any) -> str | None:
    """The source text of a ``triton.jit`` function; None for anything else."""
    is_kernel = hasattr(value, "fn") and hasattr(value, "src")
    return str(value.src) if is_kernel else None


def is_builtin(target: Any) -> bool:
    """Whether a callable is one of torch's own compiled functions (``torch.add``)."""
    owner = getattr(target, "__self__", None)
    return getattr(owner, "__module__", "") == "torch" or owner is torch._C._VariableFunctions


def schema_mutates(target: Any) -> bool | None:
    """Whether an operator overload writes to an argument; None when it has no schema."""
    schema = getattr(target, "_schema", None)
    return None if schema is None else bool(schema.is_mutable)


def never_recompute(node: fx.Node) -> None:
    """Have AOTAutograd keep what a node gives for the backward, not compute it there again."""
    from torch.utils.checkpoint import CheckpointPolicy

    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
