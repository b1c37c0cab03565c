"""Make Dynamo treat numbers computed from inputs as inputs of the frame: ``lengths.max().item()``.

Dynamo knows where each value comes from (its *source*). A number that is computed from inputs gets
a source of its own, made of theirs. So Dynamo makes it a symbolic integer or a guarded constant,
as it does with an integer argument, and hands it to the compiled graph.

Guards on such numbers run behind all other guards of a cached version: only a tensor of the right
type, device and dtype is read. All cached versions of one call share what is read: Dynamo gives
their guards the same dict of locals in one call, and another in the next, and what is read is put
into that dict.

Read and run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config
from torch import fx
from torch._dynamo import guards
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._guards import ChainedSource, Guard, GuardSource, dataclass_with_cached_hash
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._python_dispatch import _disable_current_modes

from fusepass.torch_private.patches import Patches, Theirs

_READER = "___fusepass_numbers"  # among the names that Dynamo's guards may use


@dataclass(frozen=True)
class Call:
    """One call of a computation; its operands are values by position, or constants.

    Attributes:
        method: the name of a tensor's method, or None.
        function: what is called otherwise.
        args, kwargs: with :class:`Position` in place of tensors.
    """

    method: str | None
    function: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Position:
    """The position of a value: inputs first, then what each call gave."""

    at: int


_computations: dict[str, tuple[Call, ...]] = {"": ()}  # by the name that sources have for them


def name_of(calls: tuple[Call, ...]) -> str:
    """The name of a computation, the same in each compile."""
    text = repr(calls)
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12] if calls else ""
    _computations[name] = calls
    return name


@dataclass_with_cached_hash(frozen=True)
class NumberSource(ChainedSource):
    """One number of what a computation gives for inputs, by its place among all its numbers."""

    others: tuple[Any, ...]
    computation: str
    index: int

    @functools.cached_property
    def guard_source(self) -> GuardSource:
        """Like a local."""
        return GuardSource.LOCAL  # of a module's buffer, too: its contents are no constant

    @functools.cached_property
    def _name_template(self) -> str:
        others = "".join(f", {other.name}" for other in self.others)
        others = others.replace("{", "{{").replace("}", "}}")
        return f"{_READER}(L, {self.computation!r}, {{0}}{others})[{self.index}]"

    def reconstruct(self, codegen: Any) -> None:
        """Compute it again, for the compiled code."""
        codegen.add_push_null(lambda: codegen.load_import_from(__name__, "number_at"))
        codegen.append_output(codegen.create_load_const(self.computation))
        codegen.append_output(codegen.create_load_const(self.index))
        codegen(self.base)
        for other in self.others:
            codegen(other)
        codegen.extend_output(create_call_function(3 + len(self.others), False))

    def make_guard(self, fn: Callable[..., Any]) -> Guard:
        """Its type needs no guard, because those of the tensors have one."""
        constant = fn is GuardBuilder.CONSTANT_MATCH or fn is GuardBuilder.EQUALS_MATCH
        return Guard(self, _fusepass_equals if constant else _fusepass_nothing)


def _fusepass_nothing(builder: Any, guard: Guard) -> None:
    pass


def _fusepass_equals(builder: Any, guard: Guard) -> None:
    source = guard.originating_source
    text = f"{source.name} == {builder.get(source)!r}"
    builder.add_python_lambda_leaf_guard_to_root([text], [text])


def computed(name: str, *tensors: torch.Tensor) -> torch.Tensor:
    """What a computation gives for CPU tensors; no mode sees it, and nothing is recorded."""
    if not name:
        return tensors[0]
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return _run(name, tensors)
    return _run(name, tensors)


def _run(name: str, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    values = [*tensors]
    recorded = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        for call in _computations[name]:
            args = _filled(call.args, values)
            kwargs = {key: _filled(value, values) for key, value in call.kwargs}
            function = getattr(args[0], call.method) if call.method else call.function
            values.append(function(*args[bool(call.method) :], **kwargs))
    finally:
        torch._C._set_grad_enabled(recorded)
    return values[-1]


def numbers_in(tensor: torch.Tensor) -> list[Any]:
    """All numbers of a CPU tensor; no mode sees it."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            rows = tensor.tolist()
    else:
        rows = tensor.tolist()
    dimensions = tensor.dim()
    if dimensions == 1:
        return rows
    return _flat(rows, dimensions) if dimensions else [rows]


def _filled(given: Any, values: list[torch.Tensor]) -> Any:
    if isinstance(given, Position):
        return values[given.at]
    if isinstance(given, (tuple, list)):
        return tuple([_filled(one, values) for one in given])
    return given


def _flat(rows: list[Any], dimensions: int) -> list[Any]:
    for _ in range(dimensions - 1):
        rows = [one for row in rows for one in row]
    return rows


def number_at(computation: str, index: int, *tensors: torch.Tensor) -> Any:
    """What the compiled code is given."""
    return numbers_in(computed(computation, *tensors))[index]


for _own in (number_at, computed, numbers_in, _run, _filled, _flat):
    skip_code(_own.__code__)  # compiled code calls them, and Dynamo would compile them in turn


def _read_once(local_scope: dict[Any, Any], computation: str, *tensors: torch.Tensor) -> list[Any]:
    """What a computation gives, computed once for all guards of one call."""
    read = local_scope.setdefault(_READER, {})
    key = computation, *map(id, tensors)
    known = read.get(key)
    if known is None:  # the tensors are held: else an id may be another's
        known = read[key] = tensors, numbers_in(computed(computation, *tensors))
    return known[1]  # type: ignore[no-any-return]


def tracked_number(
    translator: Any,
    sources: Sequence[Any],
    computation: str,
    index: int,
    value: Any,
    *,
    varies: bool,
) -> Any:
    """A number that is computed from inputs, tracked by Dynamo.

    Args:
        translator: Dynamo's.
        sources: of the inputs.
        computation: the name of what is computed from them.
        index: of the number among all numbers of the result.
        value: the number.
        varies: whether it becomes a symbolic integer; else a constant with a guard.
    """
    source = NumberSource(sources[0], tuple(sources[1:]), computation, index)
    if varies and type(value) is int:
        builder = VariableBuilder(translator, source)
        return builder.wrap_symint(value, dynamism=DimDynamic.DYNAMIC)
    install_guard(source.make_guard(GuardBuilder.CONSTANT_MATCH))
    return ConstantVariable.create(value)


def input_at(node: fx.Node) -> tuple[Any, torch.Tensor] | None:
    """The source and the plain tensor of an input of the frame, else None."""
    given = node.meta.get("grapharg") if node.op == "placeholder" else None
    if given is None or given.source is None or given.source.is_ephemeral():
        return None
    held = given.example
    plain = type(held) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return (given.source, held) if plain else None


def calls_numpy(node: fx.Node) -> bool:
    """Whether a call is one of NumPy's, which may write its operands."""
    return type(node.target).__name__.startswith("numpy_")


def may_have_sources(translator: Any) -> bool:
    """Whether guards of the frame are Python code, run in this process before each call."""
    config = torch._dynamo.config
    output = translator.output
    if output.export or getattr(output, "package", None) is not None:
        return False
    if getattr(config, "caching_precompile", False) or config.enable_cpp_symbolic_shape_guards:
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def most_compiles() -> int:
    """How often Dynamo compiles a function before it leaves it to eager."""
    return int(torch._dynamo.config.recompile_limit)


def may_vary() -> tuple[bool, bool]:
    """Whether integers may become symbolic integers at all, and whether they do so at once."""
    config = torch._dynamo.config
    at_once = not config.assume_static_by_default
    may = (at_once or config.automatic_dynamic_shapes) and not config.specialize_int
    return may, at_once


def hook_numbers_of_inputs(patches: Patches) -> None:
    """Let Dynamo's guards read numbers, and let no filter of guards drop those on numbers."""
    names = guards._get_closure_vars()
    names[_READER] = _read_once
    patches.callback(names.pop, _READER, None)

    def built(
        theirs: Theirs, self: Any, code: Any, output_graph: Any, *args: Any, **kwargs: Any
    ) -> None:
        args, kwargs = _with_own_guards(output_graph, args, kwargs)
        theirs(self, code, output_graph, *args, **kwargs)

    patches.put(CheckFunctionManager, "__init__", built)


_FILTER = 2  # where it takes the filter of guards, behind the output graph


def _with_own_guards(output_graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of CheckFunctionManager, with a filter that keeps guards on numbers."""
    at_name = len(args) <= _FILTER
    chosen = kwargs.get("guard_filter_fn") if at_name else args[_FILTER]
    if chosen is None:
        return args, kwargs
    varies = any(isinstance(one.source, NumberSource) for one in output_graph.tracked_fakes)

    def is_own(guard: Guard) -> bool:
        on_sizes = guard.create_fn is GuardBuilder.SHAPE_ENV
        return isinstance(guard.originating_source, NumberSource) or (on_sizes and varies)

    def filtered(entries: Any) -> list[bool]:
        pairs = zip(chosen(entries), entries, strict=True)
        return [bool(kept) or is_own(entry.orig_guard) for kept, entry in pairs]

    if at_name:
        return args, {**kwargs, "guard_filter_fn": filtered}
    return (*args[:_FILTER], filtered, *args[_FILTER + 1 :]), kwargs
