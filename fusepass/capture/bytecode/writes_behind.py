"""Find the tensors that the code after a graph may write in place, from its bytecode.

The code is followed along all its paths, with the memory that each local and each entry of the
stack may lie in. Functions and modules of the program are followed, too, where what is called can
be told; others count as writing nothing. A path ends at ``backward()``: what is written then no
longer concerns what was saved before.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.capture.bytecode.instructions import (
    SKIPPED,
    handler_of,
    names_of,
    stack_effect,
    successors,
    swapped,
)
from fusepass.graph.dataflow.effects import inplace_position
from fusepass.graph.ops.op_names import IN_PLACE_OPERATORS
from fusepass.graph.ops.schemas import may_return_an_operand
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.eager_frames import written

NULL: Any = object()  # what the bytecode of a call pushes beside a function

_MOST_ELEMENTS = 256
_CONTAINERS = (list, tuple, dict, set, torch.nn.ModuleList, torch.nn.ModuleDict)
_VIEWS = frozenset("T mT H mH data real imag".split())


class EACH(tuple[Any, ...]):
    """Several objects, any of which may be meant."""


@dataclass(frozen=True, eq=False)
class Held:
    """The value that a name, an attribute or a stack entry may hold.

    Attributes:
        memory: the memory that tensors in the value may lie in.
        container: whether the value holds tensors and is none itself: to store an element then
            writes no tensor.
        real: the object itself, if it is known.
        owner, name: if the value was loaded as an attribute, its owner and its name.
    """

    memory: frozenset[int] = frozenset()
    container: bool = False
    real: Any = None
    owner: Held | None = None
    name: str = ""

    def __or__(self, other: Held) -> Held:
        if self == other:
            return self
        same = _identity(self.real) == _identity(other.real)
        owners = self.owner is not None and other.owner is not None
        return Held(
            self.memory | other.memory,
            self.container and other.container,
            self.real if same else None,
            self.owner | other.owner if owners else None,  # type: ignore[operator]
            self.name if self.name == other.name else "",
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        owner = None if self.owner is None else self.owner._key()
        return self.memory, self.container, _identity(self.real), owner, self.name


def _identity(value: Any) -> Any:
    return tuple(map(id, value)) if isinstance(value, EACH) else id(value)


NOTHING = Held()


def either(held: Iterable[Held]) -> Held:
    """Any of several values."""
    several = list(held)
    memory = frozenset[int]().union(*(one.memory for one in several))
    return Held(memory, container=any(one.container for one in several))


@dataclass
class Values:
    """Look-up of names and attributes, and a record of what code stores.

    Attributes:
        memory_of: the memory of a tensor, as the graph knows it.
        pending: what an object gets as an attribute behind the graph, if it does.
    """

    memory_of: Callable[[torch.Tensor], frozenset[int]]
    pending: Callable[[Any, str], Held | None]
    _stored: dict[str, frozenset[int]] = field(default_factory=dict)

    def of(self, value: Any) -> Held:
        """A real object."""
        if isinstance(value, torch.Tensor):
            return Held(self.memory_of(value))
        if isinstance(value, _CONTAINERS):
            tensors = (one for one in _elements(value) if isinstance(one, torch.Tensor))
            memory = frozenset[int]().union(*map(self.memory_of, tensors))
            return Held(memory, container=True, real=value)
        return Held(real=value)

    def of_cell(self, cell: types.CellType) -> Held:
        """The value of a variable that a function has from the one around it."""
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not bound yet
            return NOTHING

    def named(self, names: Mapping[str, Any], name: str) -> Held:
        """A global, or what is built in."""
        return self.of(names.get(name, getattr(builtins, name, None)))

    def put(self, where: str, value: Held) -> None:
        """Note that a value was stored as an attribute of this name, or in a container."""
        self._stored[where] = self._stored.get(where, frozenset()) | value.memory

    def known_stores(self) -> int:
        """How much was noted so far."""
        return sum(map(len, self._stored.values()))

    def attribute(self, owner: Held, name: str) -> Held:
        """An attribute of what is held."""
        pending = None if owner.real is None else self.pending(owner.real, name)
        stored = self._stored.get(name, frozenset())
        if pending is not None:
            return Held(pending.memory | stored, pending.container, pending.real, owner, name)
        if owner.real is None or isinstance(owner.real, EACH):
            is_method = hasattr(torch.Tensor, name) and name not in _VIEWS
            memory = frozenset() if is_method else owner.memory
            return Held(memory | stored, owner=owner, name=name)
        found = self.of(_attribute(owner.real, name))
        return Held(found.memory | stored, found.container, found.real, _receiver(owner), name)

    def element(self, holder: Held, key: Held) -> Held:
        """An element of a container, any one if the place is not known, or a view of a tensor."""
        memory = holder.memory
        if holder.container:
            memory |= self._stored.get("[]", frozenset())
        values = holder.real if isinstance(holder.real, EACH) else None
        if isinstance(holder.real, _CONTAINERS) and values is None:
            try:
                if key.real is not None:
                    real: Any = holder.real
                    return self.of(real[key.real])
            except (KeyError, IndexError, TypeError):
                pass
            values = EACH(_elements(holder.real))
        return Held(memory, real=None if values is None else EACH(values))


def _elements(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, (dict, torch.nn.ModuleDict)) else value
    return list(values)[:_MOST_ELEMENTS]


def _receiver(owner: Held) -> Held | None:
    """The first argument of a method; None for a function of a module or class."""
    return None if isinstance(owner.real, (types.ModuleType, type)) else owner


def _attribute(value: Any, name: str) -> Any:
    """An attribute, without running anything of the program; None if that is not possible."""
    held = getattr(value, "__dict__", {})
    if isinstance(value, (types.ModuleType, type)):
        found = next(
            (vars(k)[name] for k in getattr(value, "__mro__", [value]) if name in vars(k)), None
        )
        return getattr(found, "__func__", found)
    for place in (held, *(held.get(kind, {}) for kind in ("_buffers", "_parameters", "_modules"))):
        if name in place:
            return place[name]
    found = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
    return found if isinstance(found, types.FunctionType) else None


_SKIPPED = (
    *SKIPPED,
    *("COPY_FREE_VARS", "GEN_START", "MAKE_CELL", "NOT_TAKEN", "SETUP_ANNOTATIONS"),
)
_LOCALS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF")
_POPPING = ("POP_", "STORE_", "DELETE_", "RETURN_", "RAISE_", "RERAISE", "END_", "PRINT_EXPR")
_COLLECTING = ("LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
_COLLECTS = ("append", "extend", "insert", "add", "update", "setdefault", "appendleft", "put")
_FRESH = ("COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_", "FORMAT_", "BUILD_STRING", "TO_BOOL")
_WRITE_NO_ELEMENT = frozenset(
    "clip_grad_norm_ clip_grad_value_ rename_ requires_grad_ share_memory_".split()
)
_STORES = frozenset(
    ("setitem", "__setitem__", *(f"__{one.__name__}__" for one in IN_PLACE_OPERATORS))
)
_BUILT_IN = types.BuiltinFunctionType
_HANDS_ON = (torch.nn.Identity, torch.nn.Flatten, torch.nn.Unflatten)
_MOST_STEPS = 20_000
_DEEPEST = 5

Stack = tuple[Held, ...]
_State = tuple[Stack, dict[str, Held]]


class _BackwardRuns(Exception):
    """The path does not matter any further."""


@dataclass
class Writes:
    """The findings of a walk over code.

    Attributes:
        values: what names and attributes stand for.
        memory: that may be written.
        steps: how many instructions may still be followed.
        open: what is being called, for recursion and as a bound on its depth.
        made, globals: the names around functions that the code makes.
    """

    values: Values
    memory: set[int] = field(default_factory=set)
    steps: int = _MOST_STEPS
    open: list[Any] = field(default_factory=list)
    made: dict[types.CodeType, dict[str, Held]] = field(default_factory=dict)
    globals: dict[types.CodeType, Any] = field(default_factory=dict)

    def write(self, held: Iterable[Held]) -> None:
        """Note that tensors are written."""
        for one in held:
            if not one.container:
                self.memory |= one.memory

    def call(self, callee: Held, args: list[Held], named: dict[str, Held]) -> Held:
        """Note the writes of a call, and give what it returns."""
        if isinstance(callee.real, EACH):
            calls = [Held(real=one, owner=callee.owner) for one in callee.real]
            return either(self.call(one, args, named) for one in calls)
        if callee.name == "backward" and "retain_graph" not in named:
            raise _BackwardRuns
        function = callee.real
        if isinstance(function, torch.nn.Module):
            return self._module(function, args, named)
        given = args if callee.owner is None else [callee.owner, *args]
        if isinstance(function, types.MethodType):
            given = [self.values.of(function.__self__), *args]
            function = function.__func__
        if isinstance(function, types.CodeType):
            names = {name: self.made[function].get(name, NOTHING) for name in function.co_freevars}
            return self._followed(function, self.globals[function], given, named | names)
        if isinstance(function, types.FunctionType):
            function = inspect.unwrap(function)
        if isinstance(function, types.FunctionType) and not is_torchs_file(_file(function)):
            return self._inlined(function, given, named)
        return self._by_name(callee, function, given, named)

    def _by_name(
        self, callee: Held, function: Any, given: list[Held], named: dict[str, Held]
    ) -> Held:
        name = callee.name or str(getattr(function, "__name__", ""))
        writes = _writes_its_first(name, function) or _is_in_place(function, given, named)
        changed = [Held(one.memory) for one in (*given[: int(writes)], *_out(named))]
        self.write(changed)
        if changed:
            return either(changed)
        owner = None if callee.owner is None else callee.owner.real
        if isinstance(owner, torch.optim.Optimizer) and name == "step":
            groups = (group["params"] for group in owner.param_groups)
            self.write(self.values.of(one) for group in groups for one in group)
        if isinstance(owner, torch.nn.Module) and name in ("parameters", "buffers"):
            return self.values.of([*getattr(owner, name)()])
        everything = either([*given, *named.values()])
        if name in _COLLECTS:
            self.values.put("[]", everything)
        if isinstance(function, type):
            return Held(everything.memory, container=True)
        return Held(everything.memory) if may_return_an_operand(name) else NOTHING

    def _module(self, module: Any, args: list[Held], named: dict[str, Held]) -> Held:
        forward = type(module).forward
        if not is_torchs_file(_file(forward)):
            return self._inlined(forward, [self.values.of(module), *args], named)
        if isinstance(module, torch.nn.Sequential):
            for child in module:
                args = [self._module(child, args, {})]
            return args[0] if args else NOTHING
        given = either([*args, *named.values()])
        if getattr(module, "inplace", False):
            self.write(args[:1])
            return Held(given.memory)
        hands_on = isinstance(module, _HANDS_ON) or "Dropout" in type(module).__name__
        return Held(given.memory) if hands_on else NOTHING

    def _inlined(self, function: Any, given: list[Held], named: dict[str, Held]) -> Held:
        code: Any = getattr(function, "__code__", None)
        if code is None:
            return Held(either([*given, *named.values()]).memory)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        around = {name: self.values.of_cell(cell) for name, cell in cells}
        return self._followed(code, function.__globals__, given, named | around)

    def _followed(
        self, code: types.CodeType, names: Any, given: list[Held], named: dict[str, Held]
    ) -> Held:
        everything = either([*given, *named.values()])
        if code in self.open or len(self.open) >= _DEEPEST:
            return Held(everything.memory)
        local = dict(zip(code.co_varnames[: code.co_argcount], given, strict=False)) | named
        if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            count = code.co_argcount + code.co_kwonlyargcount
            rest = Held(everything.memory, container=True)
            local |= dict.fromkeys(code.co_varnames[count : count + 2], rest)
        self.open.append(code)
        try:
            result = _Paths(self, code, written(code).instructions, names).follow(0, (), local)
        finally:
            self.open.pop()
        is_generator = code.co_flags & inspect.CO_GENERATOR
        return either([result, everything]) if is_generator else result


def _file(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _writes_its_first(name: str, function: Any) -> bool:
    """Whether a function or method writes what it is given first, by its name."""
    if name in _STORES or (isinstance(function, _BUILT_IN) and function in IN_PLACE_OPERATORS):
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _WRITE_NO_ELEMENT


def _out(named: dict[str, Held]) -> list[Held]:
    return [named["out"]] if "out" in named else []


def _is_in_place(function: Any, given: list[Held], named: dict[str, Held]) -> bool:
    """Whether a function is given ``inplace=True``."""
    if "inplace" in named:
        return named["inplace"].real is not False
    position = inplace_position(function) if callable(function) else -1
    return 0 <= position < len(given) and given[position].real is not False


class _Paths:
    """The paths of one function from one place on."""

    def __init__(
        self, writes: Writes, code: types.CodeType, instructions: Sequence[Any], names: Any
    ) -> None:
        self.writes, self.code, self.names = writes, code, names
        self.instructions = instructions
        self.leads = successors(instructions)
        self.returned = NOTHING

    def follow(self, start: int, stack: Stack, local: dict[str, Held]) -> Held:
        """Follow all paths; what the function returns."""
        states: dict[int, _State] = {start: (stack, local)}
        todo = [start]
        while todo and self.writes.steps > 0:
            self.writes.steps -= 1
            at = todo.pop()
            for further, state in self._steps(at, *states[at]):
                known = states.get(further)
                merged = state if known is None else _merged(known, state)
                if known is None or merged != known:
                    states[further] = merged
                    todo.append(further)
        return self.returned

    def _steps(self, at: int, stack: Stack, local: dict[str, Held]) -> list[tuple[int, _State]]:
        inst = self.instructions[at]
        after, jump, handler = self.leads[at]
        found: list[tuple[int, _State]] = []
        if handler is not None:
            entry = handler_of(inst)
            raised = (*_top(stack, entry.depth, bottom=True), *[NOTHING] * (1 + bool(entry.lasti)))
            found.append((handler, (raised, local)))
        if jump is not None:
            found.append((jump, (self._moved(inst, stack, jump=True), local)))
        if inst.opname == "RETURN_VALUE":
            self.returned = either([self.returned, *_top(stack, 1)])
        if after is None:
            return found
        try:
            return [*found, (after, self._after(at, inst, stack, local))]
        except _BackwardRuns:
            return found

    def _after(self, at: int, inst: Any, stack: Stack, local: dict[str, Held]) -> _State:
        name = inst.opname
        if name.startswith(("STORE_FAST", "STORE_DEREF")):
            stored, *loaded = names_of(inst)
            if name == "STORE_FAST_STORE_FAST":
                value, first = _top(stack, 2)
                return stack[:-2], {**local, stored: first, loaded[0]: value}
            local = {**local, stored: _top(stack, 1)[0]}
            return (*stack[:-1], *(local.get(one, NOTHING) for one in loaded)), local
        if name.startswith(_LOCALS):
            return (*stack, *(local.get(one, NOTHING) for one in names_of(inst))), local
        if name in _SKIPPED:
            return stack, local
        if name.startswith("CALL") and name in _CALLS:
            return _CALLS[name](self, at, inst, stack), local
        if name == "MAKE_FUNCTION":
            return self.make(inst, stack, local), local
        handler = _HANDLERS.get(name)
        if handler is not None:
            return handler(self, inst, stack), local
        return self._moved(inst, stack, jump=False), local

    def _moved(self, inst: Any, stack: Stack, *, jump: bool) -> Stack:
        """The stack after an instruction of which only the effect on its height is known."""
        effect = stack_effect(inst, jump=jump)
        name = inst.opname
        if effect < 0 and (jump or name.startswith(_POPPING)):
            return stack[: len(stack) + effect]
        if jump and effect == 0:
            return stack
        taken = max(1, 1 - effect) if not name.startswith("BUILD_") else 1 - effect
        operands = _top(stack, taken)
        result = NOTHING if name.startswith(_FRESH) else either(operands)
        result = Held(result.memory, container=name.startswith("BUILD_"), real=_each(operands))
        if name == "GET_ITER":
            result = operands[0]
        return (*stack[: max(0, len(stack) - taken)], *[result] * (taken + effect))

    def collect(self, inst: Any, stack: Stack) -> Stack:
        """An element is put into a list, set or dict that is further down."""
        added, rest = _top(stack, 1)[0], list(stack[:-1])
        if inst.arg <= len(rest):
            rest[-inst.arg] = either([rest[-inst.arg], added])
        return tuple(rest)

    def called(self, stack: Stack, count: int, names: Sequence[str]) -> Stack:
        """A call with ``count`` arguments on the stack, the last of them named."""
        function, *args = _top(stack, count + 2)
        rest = stack[: max(0, len(stack) - count - 2)]
        first, *args = args
        if function.real is NULL:
            function = first
        elif first.real is not NULL:
            args = [first, *args]
        plain = len(args) - len(names)
        named = dict(zip(names, args[plain:], strict=True))
        return (*rest, self.writes.call(function, args[:plain], named))

    def call(self, at: int, inst: Any, stack: Stack) -> Stack:
        """Note the writes of a call, and give what it returns."""
        before = next((one for one in reversed(self.instructions[:at]) if _counts(one)), None)
        names: Any = ()
        if before is not None and before.opname == "KW_NAMES":
            held = before.argval
            names = held if isinstance(held, tuple) else self.code.co_consts[before.arg]
        return self.called(stack, inst.arg, names)

    def call_with_names(self, _at: int, inst: Any, stack: Stack) -> Stack:
        """``CALL_KW`` of Python 3.13."""
        names = _top(stack, 1)[0].real
        known = names if isinstance(names, tuple) else ()
        return self.called(stack[:-1], inst.arg, known)

    def call_with_stars(self, _at: int, inst: Any, stack: Stack) -> Stack:
        """``f(*args, **kwargs)``."""
        effect = stack_effect(inst)
        function, *args = (one for one in _top(stack, 1 - effect) if one.real is not NULL)
        rest = stack[: max(0, len(stack) - 1 + effect)]
        return (*rest, self.writes.call(function, [Held(one.memory) for one in args], {}))

    def make(self, inst: Any, stack: Stack, local: dict[str, Held]) -> Stack:
        """A function, lambda or comprehension is made."""
        taken = 1 - stack_effect(inst)
        code = _top(stack, 1)[0].real
        around = self.writes.made.setdefault(code, {})
        around |= {name: held | around.get(name, held) for name, held in local.items()}
        self.writes.globals[code] = self.names
        return (*stack[: max(0, len(stack) - taken)], Held(real=code))

    def load_global(self, inst: Any, stack: Stack) -> Stack:
        held = self.writes.values.named(self.names, inst.argval)
        return (*stack, NULL_HELD, held) if (inst.arg or 0) % 2 else (*stack, held)

    def load_attribute(self, inst: Any, stack: Stack) -> Stack:
        held = self.writes.values.attribute(_top(stack, 1)[0], inst.argval)
        # For calls LOAD_ATTR leaves two entries from Python 3.12 on.
        as_method = inst.opname == "LOAD_METHOD" or stack_effect(inst) > 0
        return (*stack[:-1], held, NULL_HELD) if as_method else (*stack[:-1], held)

    def store_subscript(self, _inst: Any, stack: Stack) -> Stack:
        value, holder, _ = _top(stack, 3)
        self.writes.write([holder])
        self.writes.values.put("[]", value)
        return stack[: max(0, len(stack) - 3)]

    def store_attribute(self, inst: Any, stack: Stack) -> Stack:
        value, _ = _top(stack, 2)
        self.writes.values.put(inst.argval, value)
        return stack[: max(0, len(stack) - 2)]

    def subscript(self, _inst: Any, stack: Stack) -> Stack:
        holder, key = _top(stack, 2)
        held = self.writes.values.element(holder, key)
        return (*stack[: max(0, len(stack) - 2)], held)

    def operate(self, inst: Any, stack: Stack) -> Stack:
        left, right = _top(stack, 2)
        rest = stack[: max(0, len(stack) - 2)]
        if dis._nb_ops[inst.arg][1].endswith("="):  # type: ignore[attr-defined]
            self.writes.write([left])
            return (*rest, either([left, right]) if left.container else left)
        both = either([left, right])
        return (*rest, both if left.container or right.container else NOTHING)

    def elements(self, inst: Any, stack: Stack) -> Stack:
        """``FOR_ITER`` and ``UNPACK_SEQUENCE``."""
        holder = _top(stack, 1)[0]
        element = self.writes.values.element(holder, NOTHING)
        if inst.opname == "FOR_ITER":
            return (*stack, element)
        return (*stack[:-1], *[element] * (1 + stack_effect(inst)))


NULL_HELD = Held(real=NULL)
_CALLS: dict[str, Callable[..., Stack]] = {
    "CALL": _Paths.call,
    "CALL_KW": _Paths.call_with_names,
    "CALL_FUNCTION_EX": _Paths.call_with_stars,
}
_HANDLERS: dict[str, Callable[[_Paths, Any, Stack], Stack]] = {
    "BINARY_OP": _Paths.operate,
    "BINARY_SUBSCR": _Paths.subscript,
    "FOR_ITER": _Paths.elements,
    "LOAD_ATTR": _Paths.load_attribute,
    "LOAD_METHOD": _Paths.load_attribute,
    "LOAD_GLOBAL": _Paths.load_global,
    "LOAD_NAME": _Paths.load_global,
    "STORE_ATTR": _Paths.store_attribute,
    "STORE_SUBSCR": _Paths.store_subscript,
    "UNPACK_EX": _Paths.elements,
    "UNPACK_SEQUENCE": _Paths.elements,
    "LOAD_CONST": lambda _, inst, stack: (*stack, Held(real=inst.argval)),
    "LOAD_SMALL_INT": lambda _, inst, stack: (*stack, Held(real=inst.argval)),
    "PUSH_NULL": lambda _, inst, stack: (*stack, NULL_HELD),
    "COPY": lambda _, inst, stack: (*stack, _top(stack, inst.arg)[0]),
    # Python 3.13: a function and, below it, its defaults or the cells around it.
    "SET_FUNCTION_ATTRIBUTE": lambda _, inst, stack: (*stack[:-2], *_top(stack, 1)),
    "SWAP": lambda _, inst, stack: swapped(list(_top(stack, max(inst.arg, len(stack)))), inst.arg),
    **dict.fromkeys(_COLLECTING, _Paths.collect),
}


def _counts(instruction: Any) -> bool:
    return instruction.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL")


def _top(stack: Stack, count: int, *, bottom: bool = False) -> Stack:
    """The upper entries of a stack, or the lower ones; nothing is known of what is missing."""
    missing = [NOTHING] * (count - len(stack))
    if bottom:
        return (*stack[:count], *missing)
    return (*missing, *stack[max(0, len(stack) - count) :])


def _each(operands: Stack) -> Any:
    """The objects in a display like ``[self.a, self.b]``, if all are known."""
    known = [one.real for one in operands]
    return EACH(known) if known and all(one is not None for one in known) else None


def _merged(one: _State, other: _State) -> _State:
    stack = one[0]
    if len(stack) == len(other[0]):
        stack = tuple(a | b for a, b in zip(stack, other[0], strict=True))
    names = one[1] | {
        name: held | one[1][name] if name in one[1] else held for name, held in other[1].items()
    }
    return stack, names


def memory_written(
    values: Values,
    code: types.CodeType,
    instructions: Sequence[Any],
    names: Any,
    start: _State,
    at: int,
) -> set[int]:
    """Memory that code from an instruction on may write in place."""
    writes = Writes(values)
    known = -1
    while known != values.known_stores():  # a loop may read what it stores further down
        known = values.known_stores()
        _Paths(writes, code, instructions, names).follow(at, *start)
    return writes.memory
