"""A hash of the source of a rule's functions: part of the keys of Inductor's caches.

Code is hashed as bytecode with its constants, defaults, closures and everything that it can reach
by name: globals, imports it makes itself, attributes of modules and classes, helpers and theirs,
as far as they are not torch's own. Which module an attribute is read from is not followed: of a
reachable module every attribute counts that any reachable code names, of a class all attributes.

A value without stable text (a tensor in a closure, an object), and code that makes names when it
runs (``getattr``, ``eval``), make the rule unhashable: caching is then bypassed.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from fusepass.rewrite.rule import Rule
from fusepass.torch_private.fx.graphs import function_of_operator, operator_name, source_of_kernel

_PLAIN = (
    *(int, float, complex, bool, str, bytes, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_OWN_VERSIONED = frozenset(
    (
        *("torch", "numpy", "triton", "fusepass", "math", "operator", "functools", "builtins"),
        *("abc", "_abc", "collections", "enum", "itertools", "types", "typing"),
    )
)
_C_FUNCTIONS = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)
# Attributes of a class that Python and torch make themselves; some differ between processes.
_MADE_BY_PYTHON = frozenset(
    (
        *("__dict__", "__weakref__", "__firstlineno__", "_abc_impl", "__dataclass_fields__"),
        *("__dataclass_params__", "__static_attributes__", "__annotate_func__", "__annotate__"),
        *("__annotations__", "__annotations_cache__", "__orig_bases__", "__parameters__"),
        *("__type_params__", "_backward_cls", "_autograd_function_id"),
    )
)
_MAX_VALUES = 20_000  # values looked at: what reaches this far is a library, not a rule


class Unhashable(TypeError):
    """A rule refers to a value whose content cannot be told from its text."""


def rule_hash(rule: Rule) -> str:
    """Hash of everything that decides what a rule does.

    Raises:
        Unhashable: a function of it cannot be hashed.
    """
    parts = [rule.name, rule.place, repr((rule.priority, rule.devices))]
    reach = _ReachableSource()
    try:
        parts += [reach.text(f) for f in (rule.pattern, rule.replacement, rule.check)]
        parts += reach.attributes_of_modules()
    except Unhashable as error:
        raise Unhashable(f"rule {rule.name!r} ({rule.location}) refers to {error}") from None
    except RecursionError:
        problem = "values nested too deeply to be told"
        raise Unhashable(f"rule {rule.name!r} ({rule.location}) refers to {problem}") from None
    for value in rule.inputs():
        if isinstance(value, torch.Tensor):
            parts.append(f"{value.dtype} {tuple(value.shape)}")
        else:
            parts.append(repr(value))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _ReachableSource:
    """What some functions can get at, each value once."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}  # id of a value to how many came before it
        self.alive: list[Any] = []  # so that no id comes twice
        self.names: set[str] = set()  # of globals and attributes in all code so far
        self.modules: list[types.ModuleType] = []  # those of the user's

    def attributes_of_modules(self) -> list[str]:
        """Texts of what the names in the code may mean in the modules it reaches.

        Each may bring further names and further modules.
        """
        texts: dict[tuple[str, str], str] = {}
        while True:
            new = [
                (module, name)
                for module in self.modules
                for name in sorted(self.names & vars(module).keys())
                if (module.__name__, name) not in texts
            ]
            if not new:
                return [f"{module}.{name}={text}" for (module, name), text in texts.items()]
            for module, name in new:
                texts[module.__name__, name] = self.text(vars(module)[name])

    def text(self, value: Any) -> str:
        """A text that differs when the behaviour of ``value`` may."""
        if type(value) in _PLAIN:
            return repr(value)
        if is_dynamic(value):
            raise Unhashable(f"{value!r:.60}, which may read anything")
        if id(value) in self.seen:
            return f"again {self.seen[id(value)]}"
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        if len(self.seen) > _MAX_VALUES:
            raise Unhashable(f"more than {_MAX_VALUES} values")
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if _is_versioned(value):
            name = f"{value.__module__}.{getattr(value, '__qualname__', value)}"
            return f"{name} {self._cells(value)}"
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, enum.Enum):
            return f"{self.text(type(value))} {value.name} {self._all(vars(value))}"
        if operator_name(value) is not None:
            return str(value)
        inner = _wrapped(value)
        if inner is not None:
            return self.text(inner)
        if isinstance(value, type):
            return self._class(value)
        return self._contents(value)

    def _all(self, mapping: Any) -> str:
        return repr([(self.text(k), self.text(v)) for k, v in mapping.items()])

    def _contents(self, value: Any) -> str:
        """The contents of a container or a function in C."""
        kind = type(value)
        if isinstance(value, (tuple, list, set, frozenset)):
            texts = [self.text(part) for part in value]
            told = repr(sorted(texts) if isinstance(value, (set, frozenset)) else texts)
        elif isinstance(value, (dict, types.MappingProxyType)):
            told = self._all(value)
            if isinstance(value, defaultdict):
                told += self.text(value.default_factory)
        elif isinstance(value, _C_FUNCTIONS):
            return f"{value.__objclass__.__qualname__}.{value.__name__}"
        elif _is_bound_to_value(value):
            return f"{value.__name__} of {self.text(value.__self__)}"
        elif kind.__name__ == "_tuplegetter":  # a field of a named tuple: ``(index, doc)``
            return repr(value.__reduce__()[1])
        else:
            raise Unhashable(f"{kind.__name__} {value!r:.60}")
        if kind not in (tuple, list, set, frozenset, dict, types.MappingProxyType, OrderedDict):
            told += self.text(kind) + self._all(getattr(value, "__dict__", {}))
        return told

    def _module(self, module: types.ModuleType) -> str:
        name = module.__name__
        if name.startswith("fusepass."):
            return _module_source(name)
        if name.split(".")[0] not in _OWN_VERSIONED:
            if type(module) is not types.ModuleType:
                raise Unhashable(f"module {name}, of a class of its own")
            if "__getattr__" in vars(module):
                raise Unhashable(f"module {name}, whose attributes a function of it makes")
            self.modules.append(module)
        return f"module {name} {vars(module).get('__version__', '')}"

    def _class(self, kind: type) -> str:
        """All that a class and those it is derived from hold, and the class that made it."""
        if kind.__module__.startswith("fusepass."):
            return f"{kind.__qualname__} {_module_source(kind.__module__)}"
        held = {n: v for n, v in sorted(vars(kind).items()) if n not in _MADE_BY_PYTHON}
        if isinstance(kind, enum.EnumType):
            # Members are kept under several names, in tables that Python makes.
            held = {n: v for n, v in held.items() if isinstance(v, _OF_A_CLASS)}
            members: dict[str, Any] = dict(kind.__members__)
            held |= {n: member.value for n, member in members.items()}
        for made in ("__repr__", "__eq__") if "__dataclass_params__" in vars(kind) else ():
            held.pop(made, None)
        above = [self.text(base) for base in (*kind.__bases__, type(kind))]
        return f"class {kind.__qualname__} {self._all(held)} {above}"

    def _cells(self, function: Any) -> list[str]:
        """What a function closes over; also one of torch's may close over one of the user's."""
        texts = []
        for cell in getattr(function, "__closure__", None) or ():
            try:
                texts.append(self.text(cell.cell_contents))
            except ValueError:
                texts.append("empty")
        return texts

    def _function(self, function: types.FunctionType) -> str:
        cells = self._cells(function)
        more = self._all(function.__dict__)
        defaults = self.text((function.__defaults__, function.__kwdefaults__))
        if (function.__module__ or "").startswith("fusepass."):
            own = f"{function.__qualname__} {_module_source(function.__module__)}"
            return "\n".join([own, repr(cells), defaults, more])
        names, scope = names_of(function.__code__), function.__globals__
        self.names |= names
        for name in sorted(names):
            if name in DYNAMIC or (name not in scope and is_dynamic(getattr(builtins, name, None))):
                where = f"{function.__qualname__} (line {function.__code__.co_firstlineno})"
                raise Unhashable(f"{where}, which uses {name!r} and so may read anything")
        helpers = [f"{n}={self.text(scope[n])}" for n in sorted(names) if n in scope]
        helpers += [self.text(module) for module in self._imported(function)]
        return "\n".join([self._code(function.__code__), repr(cells), defaults, more, *helpers])

    def _imported(self, function: types.FunctionType) -> list[types.ModuleType]:
        """The modules that a function's own import statements give, and the packages above."""
        found: list[types.ModuleType] = []
        for name, wanted in imports_of(function.__code__, function.__globals__):
            if name.split(".")[0] in _OWN_VERSIONED and not name.startswith("fusepass."):
                continue
            parts = name.split(".")
            found += [_loaded(".".join(parts[: i + 1])) for i in range(len(parts))]
            held = vars(found[-1])
            found += [_loaded(f"{name}.{one}") for one in wanted if one not in held]
        return found

    def _code(self, code: types.CodeType) -> str:
        constants = [self.text(constant) for constant in code.co_consts]
        own = (code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars)
        return repr(own)


_OF_A_CLASS = (types.FunctionType, staticmethod, classmethod, property)


def _is_bound_to_value(value: Any) -> bool:
    """A method in C, whose object decides; what a function of ``time`` or ``os`` gives varies."""
    if not isinstance(value, types.BuiltinFunctionType):
        return False
    return value.__self__ is not None and not isinstance(value.__self__, types.ModuleType)


def _loaded(name: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise Unhashable(f"module {name}, which is not imported yet")
    return module


def _is_versioned(value: Any) -> bool:
    """Something of torch or Python, which the versions in the key stand for.

    Objects that only happen to be callable (``operator.attrgetter("a")``) are told by no version,
    except torch's operators, NumPy's functions and what Triton's language is made of.
    """
    home = getattr(value, "__module__", None) or ""
    if not callable(value) or not isinstance(home, str) or _wrapped(value) is not None:
        return False
    root = home.split(".")[0]
    if root == "fusepass" or root not in _OWN_VERSIONED or isinstance(value, torch.nn.Module):
        return False
    code = (type, types.FunctionType, types.BuiltinFunctionType)
    if isinstance(value, code) or operator_name(value) is not None:
        return True
    kind = type(value)
    of_numpy = kind.__name__ in ("ufunc", "_ArrayFunctionDispatcher")
    return of_numpy or kind.__module__.startswith("triton.language.")


@functools.cache
def _module_source(name: str) -> str:
    """Our own modules are hashed whole: their constants and helpers change with them."""
    return hashlib.sha256(inspect.getsource(sys.modules[name]).encode()).hexdigest()


def _wrapped(value: Any) -> Any:
    """What a method, property, partial, custom operator or Triton kernel is made of, or None."""
    if isinstance(value, types.MethodType):
        return (value.__func__, _owner(value.__self__))
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, functools.cached_property):
        return value.func
    if hasattr(value, "func") and hasattr(value, "keywords"):
        return (value.func, tuple(value.args), dict(value.keywords))
    function = function_of_operator(value)
    if function is not None:
        return function
    source = source_of_kernel(value)
    if source is not None:
        return (source, value.fn)  # with the constants and kernels that it names
    return getattr(value, "__wrapped__", None)


def _owner(held: Any) -> Any:
    """What a bound method may read of the object it is bound to."""
    if isinstance(held, (type, types.ModuleType, *_PLAIN)):
        return held
    if any("__slots__" in vars(kind) for kind in type(held).__mro__):
        return held  # its values are nowhere to be listed
    return (type(held), getattr(held, "__dict__", ()))


# Ways to read what no name in the code tells, as attributes or globals.
DYNAMIC = frozenset(
    (
        *("__dict__", "__globals__", "__builtins__", "__closure__", "__getattribute__"),
        *("__subclasses__", "__annotations__", "__code__", "__self__", "__import__"),
        *("attrgetter", "methodcaller", "import_module", "getmembers", "getattr_static"),
        *("f_globals", "f_locals", "format", "format_map"),
    )
)
_BUILTINS = frozenset(
    id(getattr(builtins, name))
    for name in (
        *("getattr", "hasattr", "vars", "dir", "globals", "locals", "eval", "exec", "compile"),
        *("__import__", "open", "input", "breakpoint"),
    )
)
_MODULES = frozenset(("importlib", "inspect", "gc", "ctypes", "pickle", "marshal", "runpy"))


def is_dynamic(value: Any) -> bool:
    """Whether a value reads what the names in the code that uses it do not tell."""
    if id(value) in _BUILTINS:
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.split(".")[0] in _MODULES
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if home in ("operator", "_operator"):
        return name in DYNAMIC or type(value).__qualname__ in DYNAMIC
    return isinstance(home, str) and callable(value) and home.split(".")[0] in _MODULES


def names_of(code: types.CodeType) -> set[str]:
    """Globals and attributes that code and the functions nested in it name."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = set(code.co_names).union(*map(names_of, inner))
    if any(step.opname == "MATCH_CLASS" for step in dis.get_instructions(code)):
        tuples = [c for c in code.co_consts if isinstance(c, tuple)]
        names.update(c for held in tuples for c in held if isinstance(c, str))  # ``case C(a=x)``
    return names


def imports_of(
    code: types.CodeType, scope: dict[str, Any]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Absolute names of the modules that code imports when it runs, and what it takes of each."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from imports_of(inner, scope)
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, wanted = before[-2:]  # put there by the two instructions in front
            name = str(step.argval)
            if level:
                package = scope.get("__package__") or str(scope["__name__"]).rpartition(".")[0]
                name = importlib.util.resolve_name("." * level + name, package)
            yield name, wanted or ()
        if step.opname != "EXTENDED_ARG":
            before.append(step.argval)
