"""Every private module and underscore name of torch that fusepass touches, behind names of our own.

Nothing else in the package imports them. Beside each group stand the versions it was read and run
on. When a torch release moves something, this file and docs/torch-versions.md are what changes.
"""

from __future__ import annotations

import contextlib
import logging
import dis
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx

TESTED_TORCH = ((2, 11), (2, 15))
TESTED_PYTHON = ((3, 11), (3, 13))


def torch_version() -> tuple[int, int]:
    """Major and minor version of the torch that runs."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def capture_supported() -> bool:
    """Whether this (torch, Python) pair is one that branch capture was tested on."""
    low, high = TESTED_TORCH
    py_low, py_high = TESTED_PYTHON
    return low <= torch_version() <= high and py_low <= sys.version_info[:2] <= py_high


def version_text() -> tuple[str, str, str]:
    """The running torch, the running Python, and the tested ranges, as text."""
    low, high = (".".join(map(str, v)) for v in TESTED_TORCH)
    py_low, py_high = (".".join(map(str, v)) for v in TESTED_PYTHON)
    python = ".".join(map(str, sys.version_info[:3]))
    return torch.__version__, python, f"torch {low} to {high} with Python {py_low} to {py_high}"


# --- Inductor: options, hand-off, custom passes (2.11, 2.13, 2.15) -------------------------------


def checked_inductor_option(name: str, value: Any, given_as: str) -> Any:
    """Return ``value`` if Inductor's config has ``name`` and takes such a value.

    Raises:
        UnknownOption: no such key.
        OptionType: a value of another type than the key's.
    """
    from torch._inductor import config

    from fusepass.errors import OptionType, UnknownOption

    known = config.get_config_copy()
    if name not in known:
        raise UnknownOption(given_as, [f"inductor.{key}" for key in known])
    expected = config.get_type(name)  # type: ignore[attr-defined]
    if isinstance(expected, type) and not isinstance(value, expected):
        raise OptionType(given_as, value, f"of type {expected.__name__}")
    return value


def mode_config(mode: str) -> dict[str, Any]:
    """Inductor's config changes behind a ``mode`` of torch.compile."""
    if mode == "default":
        return {}
    return dict(torch._inductor.list_mode_options(mode))


def inductor_config_value(name: str) -> Any:
    """Current value of one Inductor config key, the object itself; None where there is no key."""
    from torch._inductor import config

    return getattr(config, name, None)


def compile_with_inductor(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, Any],
    region_name: str | None = None,
) -> Callable[..., Any]:
    """Hand a graph to Inductor (through AOTAutograd) with these config patches.

    Going through torch's own wrapper keeps what it does beside the call: CUPTI settings for CUDA
    graphs and the bisector's config changes. ``region_name`` is what 2.13 and later call ``name``.
    """
    wrapper = torch._TorchCompileInductorWrapper
    if torch_version() >= (2, 13):
        compiler = wrapper(None, None, None, region_name)
    else:
        compiler = wrapper(None, None, None)
    with_cudagraphs = {k: v for k, v in patches.items() if k == "triton.cudagraphs"}
    if with_cudagraphs:
        compiler = type(compiler)(None, with_cudagraphs, None)
        if torch_version() >= (2, 13):
            compiler.name = region_name
    compiler.config = {**compiler.config, **patches}
    return compiler(gm, inputs)  # type: ignore[no-any-return]


def reset_cudagraphs() -> None:
    """Free the CUDA-graph trees, as Inductor's own ``reset`` does."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


def compile_decomposed_eager(
    gm: fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """Hand a graph to AOTAutograd with Inductor's decompositions; ``compiler`` gets the results."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    compiled = aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())
    return compiled(gm, inputs)


def run_op_by_op(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The graph itself as what runs, in the calling convention of AOTAutograd."""
    from torch._dynamo.backends.debugging import boxed_nop

    return boxed_nop(gm, inputs)


def graph_pass(
    run: Callable[[fx.Graph], None], uuid: Callable[[], Any]
) -> Callable[[fx.Graph], None]:
    """Wrap a function as an Inductor custom pass whose ``uuid`` enters Inductor's cache keys."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            run(graph)

        def uuid(self) -> Any:
            return uuid()

    return Pass()


def chained_passes(*passes: Any) -> Any:
    """One value for an Inductor pass hook that runs all of ``passes`` (None entries are skipped).

    2.11 takes one object per hook, later versions also a list; user hooks come first.
    """
    flat: list[Any] = []
    for entry in passes:
        if isinstance(entry, (list, tuple)):
            flat.extend(entry)
        elif entry is not None:
            flat.append(entry)
    if len(flat) <= 1:
        return flat[0] if flat else None
    if torch_version() >= (2, 13):
        return flat

    def run(graph: fx.Graph) -> None:
        for one in flat:
            one(graph)

    def uuid() -> Any:
        ids = [one.uuid() if hasattr(one, "uuid") else None for one in flat]
        return None if None in ids else tuple(ids)

    return graph_pass(run, uuid)


def inductor_cache_folder() -> str:
    """The folder Inductor keeps generated code and compiled graphs in; it may not exist yet."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return str(Path(default_cache_dir() if given is None else given).absolute())


def inductor_counters() -> Any:
    """The ``inductor`` counters, whose changes travel inside cached artifacts."""
    from torch._dynamo.utils import counters

    return counters["inductor"]


def dynamo_counters() -> Any:
    """All of Dynamo's counters, by group."""
    from torch._dynamo.utils import counters

    return counters


def clear_inductor_caches() -> None:
    """Drop Inductor's in-memory caches, so that a compile reads (or misses) those on disk."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def clear_compilation_metrics() -> None:
    """Forget the frames Dynamo has compiled so far."""
    from torch._dynamo.utils import clear_compilation_metrics as clear

    clear()


def compilation_metrics() -> list[Any]:
    """One record per frame Dynamo compiled or gave up (the last 64), with ``graph_op_count``."""
    from torch._dynamo.utils import get_compilation_metrics

    return list(get_compilation_metrics())


# --- Dynamo: who compiles, and hooks into the trace (2.11, 2.13, 2.15) ---------------------------


def transparent(error: Exception) -> Exception:
    """The same error as a subclass that Dynamo passes to the user unwrapped."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    both = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    clone = both.__new__(both, *error.args)
    clone.args = error.args
    clone.first_useful_frame = None
    return clone  # type: ignore[no-any-return]


def compiler_chain(compiler: Any) -> Iterator[Any]:
    """The backend wrapped by Dynamo's and torch.compile's layers, from outside in."""
    seen = 0
    while compiler is not None and seen < 16:
        yield compiler
        seen += 1
        for link in ("_torchdynamo_orig_backend", "compiler_fn", "func"):
            inner = getattr(compiler, link, None)
            if inner is not None and callable(inner):
                compiler = inner
                break
        else:
            return


def backend_of(compiled: Any) -> Any:
    """The callback torch.compile put behind a compiled function or module, or None."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is not None:
        return getattr(context, "callback", None)
    for function in (compiled, getattr(compiled, "__func__", None)):
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):
                inner = cell.cell_contents
                if hasattr(inner, "_torchdynamo_orig_backend"):
                    return inner
                if hasattr(getattr(inner, "callback", None), "_torchdynamo_orig_backend"):
                    return inner.callback
    return None


def original_callable(compiled: Any) -> Any:
    """What torch.compile was given, or the argument itself when it is not a compiled callable."""
    if hasattr(compiled, "_orig_mod"):
        return compiled._orig_mod
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def compile_wrapper_arguments(wrapper: Any) -> tuple[str | None, dict[str, Any], bool | None]:
    """``mode``, ``options`` and ``dynamic`` of one torch.compile call, from its backend wrapper."""
    kwargs = getattr(wrapper, "kwargs", None) or getattr(wrapper, "keywords", None) or {}
    return kwargs.get("mode"), dict(kwargs.get("options") or {}), getattr(wrapper, "dynamic", None)


@contextlib.contextmanager
def room_for_recompiles() -> Iterator[None]:
    """Let code that already has compiled versions be compiled once more."""
    with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        yield


def _traced_codes() -> list[Any]:
    """Every code object Dynamo was asked about since the last reset."""
    from torch._dynamo.convert_frame import input_codes

    return [code for code in (weak() for weak in input_codes.seen) if code is not None]


def trace_skipped_again() -> None:
    """Let Dynamo look once more at frames it has given up on, or stopped compiling.

    The mark is on the code object: a frame that one backend met with a graph break inside a loop is
    skipped for every backend from then on.
    """
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._C._dynamo.eval_frame import set_code_exec_strategy

    again = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
    for code in _traced_codes():
        set_code_exec_strategy(code, again)


@contextlib.contextmanager
def dynamic_shapes_unlearned() -> Iterator[None]:
    """Forget, on leaving, which sizes Dynamo has seen vary meanwhile."""
    import copy

    from torch._dynamo.pgo import get_code_state

    before = copy.deepcopy(dict(get_code_state()))
    try:
        yield
    finally:
        state = get_code_state()
        state.clear()
        state.update(before)


def forget_compiled_for(backend: Any) -> None:
    """Drop every compiled version made for ``backend``; those of other backends stay.

    Where a code object has both, ours are invalidated in place, as Dynamo does when something they
    guard on dies, and marked so that they do not count towards the user's recompile limit.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo.eval_frame import cached_backends
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    def is_ours(compiler: Any) -> bool:
        return any(link is backend for link in compiler_chain(compiler))

    for code in _traced_codes():
        entries = _debug_get_cache_entry_list(code)
        ours = [entry for entry in entries if is_ours(entry.backend)]
        if ours and len(ours) == len(entries):
            reset_code(code)
            continue
        for entry in ours:
            dead = DeletedGuardManagerWrapper("compiled to be explained")
            # Entries for another object do not count; `dead` is never a local of that name.
            dead.id_matched_objs = {"": lambda: backend}  # type: ignore[dict-item]
            extra_state = entry.guard_manager.extra_state
            if extra_state is not None:
                extra_state.invalidate(entry, dead)
    for key, value in list(cached_backends.items()):
        if is_ours(value):
            del cached_backends[key]


def compiled_in_place(module: Any) -> Any:
    """What ``module.compile(...)`` put behind a module's call, or None."""
    return getattr(module, "_compiled_call_impl", None)


@contextlib.contextmanager
def without_compile_in_place(module: Any) -> Iterator[None]:
    """Call a module as if ``module.compile(...)`` had not been called on it."""
    held = compiled_in_place(module)
    if held is not None:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        if held is not None:
            module._compiled_call_impl = held


def code_of(target: Any) -> Any:
    """The code object Dynamo starts with for a function, method or module, or None."""
    forward = target.forward if isinstance(target, torch.nn.Module) else target
    return getattr(forward, "__code__", None)


def iterator_states(values: Sequence[Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Every iterator among tracked values, and inside them, with a copy of where it stands.

    Raises:
        ValueError: a generator is among them, whose state cannot be copied.
    """
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.iter import IteratorVariable

    found: dict[int, tuple[Any, dict[str, Any]]] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if not isinstance(value, VariableTracker) or id(value) in found:
            continue
        if "Generator" in type(value).__name__:
            raise ValueError("a generator")
        if not isinstance(value, IteratorVariable):
            continue
        state = dict(vars(value))
        state = {k: list(v) if isinstance(v, list) else v for k, v in state.items()}
        found[id(value)] = (value, state)
        for held in state.values():
            todo.extend(held if isinstance(held, (list, tuple)) else [held])
    return list(found.values())


def input_count(translator: Any) -> int:
    """How many inputs the graph being recorded has so far."""
    return len(translator.output.current_tracer.input_name_to_proxy)


def is_internal_file(path: str) -> bool:
    """Whether a source file is part of Dynamo (its stand-ins for builtins), not of a program."""
    return "/torch/_dynamo/" in path.replace("\\", "/")


_JUMPS = {
    "POP_JUMP_IF_TRUE": True,
    "POP_JUMP_IF_FALSE": False,
    "POP_JUMP_FORWARD_IF_TRUE": True,
    "POP_JUMP_FORWARD_IF_FALSE": False,
    "POP_JUMP_BACKWARD_IF_TRUE": True,
    "POP_JUMP_BACKWARD_IF_FALSE": False,
    "JUMP_IF_TRUE_OR_POP": True,
    "JUMP_IF_FALSE_OR_POP": False,
}


def jump_kind(opname: str) -> tuple[bool, bool]:
    """For a conditional jump: (jumps when true, keeps the tested value if it jumps)."""
    return _JUMPS[opname], opname.endswith("_OR_POP")


_IDENTITY_TESTS = ("IS_OP", "CONTAINS_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "BUILD_MAP", "CALL")

JumpHandler = Callable[[Any, Any, Callable[[Any, Any], None]], None]
GraphHandler = Callable[[Any, fx.GraphModule, Callable[[], Any]], Any]
BreakHandler = Callable[[Any, str, Any], None]


def install_hooks(
    on_jump: JumpHandler,
    on_identity: Callable[[Any, Callable[[], list[Any]]], None],
    on_graph: GraphHandler,
    on_break: BreakHandler,
) -> Callable[[], None]:
    """Put our handlers in front of Dynamo's; returns the function that takes them out again.

    Args:
        on_jump: called as ``(translator, instruction, original)`` at each conditional jump.
        on_identity: called as ``(translator, compared)`` before an operation that may look at which
            object a value is (``is``, ``id``, ``in``, dict keys); ``compared()`` gives the values.
        on_graph: called as ``(output_graph, gm, compile)`` when a graph is complete; must return
            ``compile()`` or raise.
        on_break: called as ``(translator, reason, exception)`` before a graph break is logged.
    """
    from torch._dynamo import symbolic_convert
    from torch._dynamo.output_graph import OutputGraph

    undo: list[Callable[[], None]] = []
    base = symbolic_convert.InstructionTranslatorBase
    kinds = [base, *_all_subclasses(base)]
    for kind in kinds:
        table = kind.dispatch_table
        for opname in _JUMPS:
            opcode = dis.opmap.get(opname)
            if opcode is None or table[opcode] is None:
                continue
            original = table[opcode]
            table[opcode] = _jump_hook(on_jump, original)
            undo.append(functools.partial(table.__setitem__, opcode, original))

        for opname in _IDENTITY_TESTS:
            opcode = dis.opmap.get(opname)
            if opcode is None or table[opcode] is None:
                continue
            original = table[opcode]
            table[opcode] = _identity_hook(on_identity, original)
            undo.append(functools.partial(table.__setitem__, opcode, original))

    call_user_compiler = OutputGraph.call_user_compiler

    @functools.wraps(call_user_compiler)
    def with_graph(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        return on_graph(self, gm, lambda: call_user_compiler(self, gm, *args, **kwargs))

    OutputGraph.call_user_compiler = with_graph  # type: ignore[method-assign]
    undo.append(lambda: setattr(OutputGraph, "call_user_compiler", call_user_compiler))

    log_graph_break = base.log_graph_break

    @functools.wraps(log_graph_break)
    def with_break(
        self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any
    ) -> Any:
        if not getattr(exc, "logged", False):
            on_break(self, reason, exc)
        return log_graph_break(self, code_options, reason=reason, exc=exc, **kw)

    base.log_graph_break = with_break  # type: ignore[method-assign]
    undo.append(lambda: setattr(base, "log_graph_break", log_graph_break))

    def uninstall() -> None:
        while undo:
            undo.pop()()

    return uninstall


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]


def _jump_hook(
    on_jump: JumpHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        on_jump(translator, instruction, original)

    return handler


def _compared(translator: Any, instruction: Any) -> list[Any]:
    """Values on the stack whose identity an instruction may look at."""
    stack, name = translator.stack, instruction.opname
    if name == "IS_OP":
        pair = list(stack[-2:])
        return pair if all(is_any_tensor(realized(value)) for value in pair) else []
    if name == "CALL":
        callee = stack[-instruction.arg - 2 :][:2]
        is_id = any(getattr(realized(value), "fn", None) is id for value in callee)
        return list(stack[-1:]) if is_id else []
    if name == "BUILD_MAP":
        return list(stack[len(stack) - 2 * instruction.arg :: 2]) if instruction.arg else []
    value, container = (stack[-2], stack[-1]) if name == "CONTAINS_OP" else (stack[-1], stack[-2])
    return [] if is_any_tensor(realized(container)) else [value]


def _identity_hook(
    on_identity: Callable[[Any, Callable[[], list[Any]]], None],
    original: Callable[[Any, Any], None],
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        on_identity(translator, lambda: _compared(translator, instruction))
        original(translator, instruction)

    return handler


# --- Dynamo: values on the symbolic stack (2.11, 2.13, 2.15) -------------------------------------


def is_plain_tensor(value: Any) -> bool:
    """Whether a tracked value is an ordinary strided tensor (no subclass, no sparse layout)."""
    from torch._dynamo.variables import TensorVariable

    if type(value) is not TensorVariable:
        return False
    fake = value.proxy.node.meta.get("example_value")
    return isinstance(fake, torch.Tensor) and is_plain_fake(fake)


def is_plain_fake(fake: torch.Tensor) -> bool:
    """Whether a fake tensor stands for an ordinary strided tensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    kind = type(fake)
    return issubclass(kind, (FakeTensor, torch.nn.Parameter)) and fake.layout is torch.strided


def tensor_on_top(translator: Any) -> Any:
    """The tracked tensor on top of the symbolic stack, or None when it is not a tensor."""
    from torch._dynamo.variables import LazyVariableTracker

    value = translator.stack[-1]
    if isinstance(value, LazyVariableTracker):
        held = getattr(value, "_cache", None)
        if not isinstance(getattr(held, "value", None), torch.Tensor):
            return None
        value = value.realize()
        translator.stack[-1] = value
    return value if is_any_tensor(value) else None


def node_of(value: Any) -> fx.Node | None:
    """The graph node of a tracked tensor, or None for anything else."""
    from torch._dynamo.variables import LazyVariableTracker

    if isinstance(value, LazyVariableTracker) and not value.is_realized():
        return None
    value = realized(value)
    return value.as_proxy().node if is_any_tensor(value) else None


def is_any_tensor(value: Any) -> bool:
    """Whether a tracked value is a tensor of any sort."""
    from torch._dynamo.variables import TensorVariable

    return isinstance(value, TensorVariable)


def realized(value: Any) -> Any:
    """The tracked value itself behind a lazily built one."""
    from torch._dynamo.variables import LazyVariableTracker

    return value.realize() if isinstance(value, LazyVariableTracker) else value


def constant_of(value: Any) -> tuple[bool, Any]:
    """``(True, python value)`` for a compile-time constant, else ``(False, None)``."""
    from torch._dynamo.variables import ConstantVariable

    immutable = ("SizeVariable", "SliceVariable", "EnumVariable")
    plain = isinstance(value, ConstantVariable) or type(value).__name__ in immutable
    if plain and value.is_python_constant():
        return True, value.as_python_constant()
    return False, None


def same_symbol(a: Any, b: Any) -> bool:
    """Whether two tracked sizes, or tuples of sizes, are equal for every input."""
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.lists import SizeVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    if isinstance(a, SizeVariable) and isinstance(b, SizeVariable):
        pairs = list(zip(a.items, b.items, strict=False))
        return len(a.items) == len(b.items) and all(same_symbol(x, y) for x, y in pairs)
    if isinstance(a, SymNodeVariable) and isinstance(b, SymNodeVariable):
        return known_equal(a.sym_num, b.sym_num)
    if isinstance(a, ConstantVariable) and isinstance(b, ConstantVariable):
        x, y = a.as_python_constant(), b.as_python_constant()
        return type(x) is type(y) and bool(x == y)
    return False


def sequence_items(value: Any) -> tuple[str, Any] | None:
    """``(kind, items)`` of a tuple, list or dict built while tracing; None for anything else."""
    from torch._dynamo import variables

    kind = type(value)
    if kind is variables.TupleVariable:
        return "tuple", list(value.items)
    if not _made_in_arm(value):
        return None
    if kind is variables.ListVariable:
        return "list", list(value.items)
    if kind is variables.ConstDictVariable:
        return "dict", dict(value.items)
    return None


def _made_in_arm(value: Any) -> bool:
    """Whether a container was made in a deeper scope than the one in force: in an arm just left."""
    from torch._dynamo.current_scope_id import current_scope_id

    mutation = getattr(value, "mutation_type", None)
    return value.source is None and getattr(mutation, "scope", 0) > current_scope_id()


def rebuilt(value: Any, items: Any) -> Any:
    """A new tuple, list or dict of the same kind as ``value`` with other items."""
    from torch._dynamo import variables
    from torch._dynamo.variables.base import ValueMutationNew

    if type(value) is variables.TupleVariable:
        return value.clone(items=items, source=None)
    return value.clone(items=items, source=None, mutation_type=ValueMutationNew())


def is_existing_mutation(value: Any) -> bool:
    """Whether a tracked value existed before the traced frame started."""
    mutation = getattr(value, "mutation_type", None)
    return mutation is not None and getattr(mutation, "scope", 0) == 0


def wrap_tensor(translator: Any, proxy: fx.Proxy, fake: torch.Tensor) -> Any:
    """A tracked tensor for a proxy whose fake value is known."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    return wrap_fx_proxy(translator, proxy, example_value=fake)


def wrap_call(
    translator: Any, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call in the graph being traced and return its tracked value."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    proxy = translator.output.create_proxy(kind, target, args, kwargs)
    return wrap_fx_proxy(translator, proxy)


@contextlib.contextmanager
def new_scope() -> Iterator[None]:
    """Dynamo's mutation scope: inside, writing to anything made outside is refused."""
    from torch._dynamo.current_scope_id import enter_new_scope

    with enter_new_scope():
        yield


def break_reason(text: str, translator: Any) -> Any:
    """What a speculation entry carries as the reason of its graph break."""
    from torch._dynamo.output_graph import GraphCompileReason

    return GraphCompileReason(text, [translator.frame_summary()])


def is_generator_frame(translator: Any) -> bool:
    """Whether the frame is a generator that Dynamo inlines."""
    from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator

    return isinstance(translator, InliningGeneratorInstructionTranslator)


@contextlib.contextmanager
def plain_asserts() -> Iterator[None]:
    """Treat ``assert tensor`` as the branch it is, not as a device-side assert."""
    with torch._dynamo.config.patch(rewrite_assert_with_torch_assert=False):
        yield


def unsupported_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises for code it cannot trace."""
    from torch._dynamo import exc

    kinds: list[type[BaseException]] = [exc.Unsupported, exc.UserError, exc.TorchRuntimeError]
    kinds.extend([exc.SkipFrame, exc.UncapturedHigherOrderOpError])
    return tuple(kinds)


def restart_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises to start its analysis again; never to be swallowed."""
    from torch._dynamo import exc

    return (exc.RestartAnalysis,)


def observed_exceptions() -> tuple[type[BaseException], ...]:
    """What Dynamo raises inside itself for an exception of the traced program."""
    from torch._dynamo import exc

    return (exc.ObservedException,)


# --- graphs (2.11, 2.13, 2.15) -------------------------------------------------------------------


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


def fake_mode_of(gm: fx.GraphModule) -> Any:
    """The mode the fake tensors Dynamo recorded in a graph compute under, or None.

    Not the tracing context's: Dynamo gives backends a fresh mode, its recorded values keep theirs.
    """
    for node in gm.graph.nodes:
        mode = getattr(node.meta.get("example_value"), "fake_mode", None)
        if mode is not None:
            return mode
    return None


def source_of(node: fx.Node) -> tuple[str, int]:
    """File and line of the user's code a node came from, ``("", 0)`` when unknown."""
    from torch.fx.graph import _parse_stack_trace

    parsed = _parse_stack_trace(node.meta.get("stack_trace") or "")
    return (parsed.file, int(parsed.lineno)) if parsed else ("", 0)


# --- shapes (2.11, 2.13, 2.15) -------------------------------------------------------------------


def known_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal for every input, decided without adding a guard."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(left == right))


def has_unbacked_size(fake: torch.Tensor) -> bool:
    """Whether a size of a fake tensor depends on data, as that of ``nonzero`` does."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(fake))


def storage_key(fake: torch.Tensor) -> int:
    """Identity of the memory behind a (fake) tensor: equal for views of one another.

    A tensor inside a functorch transform has no storage to ask for and gets an identity of its own.
    """
    try:
        return int(fake.untyped_storage()._cdata)
    except NotImplementedError:
        return id(fake)


def cond_operator() -> Any:
    """The higher-order operator behind ``torch.cond``."""
    return torch.ops.higher_order.cond


def operator_name(target: Any) -> tuple[str, str] | None:
    """``(namespace, name)`` of a registered operator or one of its overloads, else None."""
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return None
    namespace, _, name = target._qualified_op_name.partition("::")
    return namespace, name


def is_builtin(target: Any) -> bool:
    """Whether a callable is one of torch's own compiled functions (``torch.add``)."""
    owner = getattr(target, "__self__", None)
    return getattr(owner, "__module__", "") == "torch" or owner is torch._C._VariableFunctions


def schema_mutates(target: Any) -> bool | None:
    """Whether an operator overload writes to an argument; None when it has no schema."""
    schema = getattr(target, "_schema", None)
    return None if schema is None else bool(schema.is_mutable)


# --- Inductor: lowering of our own operators (2.11, 2.13, 2.15) ----------------------------------


def addmm_activation(
    bias: torch.Tensor, x: torch.Tensor, weight_t: torch.Tensor, use_gelu: bool
) -> torch.Tensor:
    """``activation(x @ weight_t + bias)`` in one library call; see ``aten::_addmm_activation``."""
    return torch._addmm_activation(bias, x, weight_t, use_gelu=use_gelu)


def lower_to_addmm_activation(operator: Any, plan: Callable[..., bool | None]) -> None:
    """Compile ``operator(x, weight_t, bias, activation)`` to ``torch._addmm_activation(out=…)``.

    The call stands in the generated code as those of ``addmm`` do: Inductor plans the memory of
    its output, and it costs the host what ``addmm`` costs. Generated code names nothing of ours, so
    it runs from a cache in a process that never came here.

    Args:
        operator: an overload of that signature; ``bias`` may be None.
        plan: given fake tensors and the activation, returns ``use_gelu``, or None to leave the
            call to the operator.
    """
    if "torch._inductor.lowering" not in sys.modules:
        return
    from torch._inductor import ir, lowering
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.virtualized import V

    if getattr(lowering.lowerings.get(operator), "fusepass_plan", None) is plan:
        return
    leave = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(x: Any, weight_t: Any, bias: Any, activation: str) -> Any:
        node = V.graph.current_node
        fakes = [value.meta["val"] if isinstance(value, fx.Node) else value for value in node.args]
        use_gelu = plan(*fakes)
        if use_gelu is None or node.meta.get("fusepass_candidate") == "reference":
            return leave(x, weight_t, bias, activation)
        *_, layout, x, weight_t = mm_args(x, weight_t)
        if bias is None:
            bias = zeros(layout)
        if V.graph.cpp_wrapper:  # has a shim for the overload that allocates its output only
            call = lowering.lowerings[torch.ops.aten._addmm_activation.default]
            return call(bias, x, weight_t, use_gelu=use_gelu)
        bias = ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(bias))
        return ir.TensorBox.create(
            ir.ExternKernelOut(
                layout=layout,
                inputs=[bias, x, weight_t],
                kwargs={"use_gelu": use_gelu},
                python_kernel_name="torch._addmm_activation",
                op_overload=torch.ops.aten._addmm_activation.out,
            )
        )

    def zeros(layout: Any) -> Any:
        """A constant of the compiled code; with a symbolic size, or in C++, made by each call."""
        size, kind = layout.size[1], {"dtype": layout.dtype, "device": layout.device}
        if V.graph.cpp_wrapper or not (isinstance(size, int) or size.is_Integer):
            return lowering.lowerings[torch.ops.aten.full]([size], 0, **kind)
        with real_tensors():
            return V.graph.add_tensor_constant(torch.zeros(int(size), **kind))

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    vars(lowering.lowerings[operator])["fusepass_plan"] = plan


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Compute for real inside a compile: no fake tensors, no tracing, no autograd."""
    from torch._dispatch.python import no_python_dispatcher
    from torch._guards import tracing
    from torch.utils._python_dispatch import _disable_current_modes as no_modes

    with no_modes(), no_python_dispatcher(), tracing(None), torch.no_grad():
        yield


# --- tuning (2.11, 2.13, 2.15) --------------------------------------------------------------------


def keep_device_busy(cycles: int) -> None:
    """Queue a kernel on the current CUDA stream that does nothing for so many clock cycles."""
    torch.cuda._sleep(cycles)


def compile_region(
    function: Callable[..., Any], inputs: Sequence[Any], patches: Mapping[str, Any]
) -> Callable[[], Any]:
    """Compile a small function with Inductor alone, also from inside another compile.

    Dynamo and AOTAutograd stay out of it: they hold locks and contexts of the compile that is under
    way. Call it, and what it returns, under :func:`real_tensors`.

    Args:
        function: of the tensors in ``inputs``; returns one tensor.
        inputs: real tensors.
        patches: Inductor config values; custom passes and CUDA graphs are off in any case.

    Returns:
        A function of no arguments that runs the compiled code on ``inputs``.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    hooks = (
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
        "joint_custom_pre_pass",
        "joint_custom_post_pass",
        "pre_grad_custom_pass",
    )
    plain = {hook: None for hook in hooks if hasattr(config, hook)}
    with config.patch({**patches, **plain, "triton.cudagraphs": False}):
        traced = make_fx(lambda *args: (function(*args),), select_decomp_table())
        gm = traced(*inputs)
        code = compile_fx_inner(gm, list(inputs))
    return lambda: code(list(inputs))


# --- tracing rules (2.11, 2.13, 2.15) -------------------------------------------------------------


def traced_to_aten(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.Graph:
    """Trace to ATen calls through Inductor's decompositions; ``inputs`` are fake."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function, select_decomp_table(), tracing_mode="real")(*inputs)
    graph = traced.graph
    graph.eliminate_dead_code()
    return graph


def symbolic_fake_mode() -> Any:
    """A fake mode whose sizes are symbols that know nothing of each other."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=False)


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """No log lines of fake tensors for what is tried and may well fail."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def plain_fake_mode() -> Any:
    """A fake mode with sizes as they are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=False)


def symbolic_fake(mode: Any, value: torch.Tensor, place: int) -> torch.Tensor:
    """A fake tensor like ``value`` with a symbol of its own for every size but 0 and 1."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] * value.dim(),
        constraint_sizes=[None] * value.dim(),
    )
    source = ConstantSource(f"rule_input_{place}")
    return mode.from_tensor(value, source=source, symbolic_context=context)  # type: ignore[no-any-return]


def size_expression(size: Any, mode: Any) -> Any:
    """An int, or the sympy expression of a symbolic size with what the mode found out put in."""
    if isinstance(size, int):
        return size
    expression = mode.shape_env.simplify(mode.shape_env.replace(size.node.expr))
    return int(expression) if expression.is_number else expression


def evaluated_size(expression: Any, sizes: dict[Any, Any]) -> Any:
    """A size expression with symbols replaced by the sizes (ints or SymInts) they stand for.

    Raises:
        KeyError: a symbol without a size.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if isinstance(expression, int):
        return expression
    missing = expression.free_symbols - sizes.keys()
    if missing:
        raise KeyError(str(missing))
    return sympy_interp(PythonReferenceAnalysis, sizes, expression)


def symbol_nodes(gm_graph: fx.Graph) -> dict[Any, fx.Node]:
    """Symbol to the node of a graph that holds it as a number."""
    found: dict[Any, fx.Node] = {}
    for node in gm_graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and value.node.expr.is_symbol:
            found.setdefault(value.node.expr, node)
    return found


def size_as_node(size: Any, known: dict[Any, fx.Node], graph: fx.Graph) -> Any:
    """Nodes that compute a symbolic size out of sizes the graph holds.

    Raises:
        KeyError: a symbol the graph does not hold.
    """
    from torch.fx.proxy import GraphAppendingTracer
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    expression = size.node.expr
    if expression.is_number:
        return int(expression) if expression.is_integer else float(expression)
    missing = expression.free_symbols - known.keys()
    if missing:
        raise KeyError(f"the graph holds no node for the size {missing}")
    tracer = GraphAppendingTracer(graph)
    proxies = {s: fx.Proxy(known[s], tracer) for s in expression.free_symbols}
    result = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return result.node if isinstance(result, fx.Proxy) else result


def lacks_backward(target: Any) -> bool:
    """Whether an operator of a library can be run but not differentiated."""
    from torch._library.custom_ops import OPDEFS

    names = operator_name(target)
    if names is None or names[0] in ("aten", "prims"):
        return False
    name = "::".join(names)
    definition = OPDEFS.get(name)
    if definition is not None:
        return definition._backward_fn is None
    keys = ("Autograd", "CompositeImplicitAutograd", "AutogradCPU", "AutogradCUDA")
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def size_hint(size: Any) -> int | None:
    """A size as a number: its hint where it is symbolic, None where it depends on data."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if isinstance(hint, int) else None


# --- tests of rules (2.11, 2.13, 2.15) -----------------------------------------------------------


@contextlib.contextmanager
def guards_not_timed() -> Iterator[None]:
    """Spare each compile the timing of its guards, which Dynamo does for its log only.

    It empties the CPU's caches first, a third of what compiling a small program takes.
    """
    from torch._dynamo import guards

    timed = getattr(guards, "profile_guard_manager", None)
    if timed is None:
        yield
        return
    guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        guards.profile_guard_manager = timed
