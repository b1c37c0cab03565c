"""The hash of a rule follows every name its code can read by, and gives up on what it cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.rewrite.source_hash import Unhashable, rule_hash

# A module's text with a function ``r``, and a change behind it that changes what ``r`` computes.
FOLLOWED = {
    "data of a class": (
        "class Cfg:\n    k = 1.0\ndef r(x):\n    return x * Cfg.k",
        "Cfg.k = 5.0",
    ),
    "data of a class through an instance": (
        "class Cfg:\n    k = 1.0\ndef r(x):\n    return x * Cfg().k",
        "Cfg.k = 5.0",
    ),
    "class in a class": (
        "class A:\n    class B:\n        k = 1.0\ndef r(x):\n    return x * A.B.k",
        "A.B.k = 5.0",
    ),
    "property": (
        (
            "class Cfg:\n    @property\n    def k(self):\n        return 1.0\n"
            "def r(x):\n    return x * Cfg().k"
        ),
        "Cfg.k = property(lambda self: 5.0)",
    ),
    "method of a base class": (
        (
            "class Base:\n    def k(self):\n        return 1.0\nclass Cfg(Base):\n    pass\n"
            "def r(x):\n    return x * Cfg().k()"
        ),
        "Base.k = lambda self: 5.0",
    ),
    "static method of a base class": (
        (
            "class Base:\n    @staticmethod\n    def k():\n        return 1.0\nclass Cfg(Base):\n"
            "    pass\ndef r(x):\n    return x * Cfg.k()"
        ),
        "Base.k = staticmethod(lambda: 5.0)",
    ),
    "super": (
        (
            "class Base:\n    k = 1.0\nclass Cfg(Base):\n    def g(self):\n        return super().k\n"
            "def r(x):\n    return x * Cfg().g()"
        ),
        "Base.k = 5.0",
    ),
    "property of a metaclass": (
        (
            "class Meta(type):\n    @property\n    def k(cls):\n        return 1.0\n"
            "class Cfg(metaclass=Meta):\n    pass\ndef r(x):\n    return x * Cfg.k"
        ),
        "Meta.k = property(lambda cls: 5.0)",
    ),
    "data of an autograd function": (
        (
            "import torch\nclass F(torch.autograd.Function):\n    k = 1.0\n    @staticmethod\n"
            "    def forward(ctx, x):\n        return x * F.k\ndef r(x):\n    return F.apply(x)"
        ),
        "F.k = 5.0",
    ),
    "attribute of a helper": (
        "def helper(x):\n    return x\nhelper.k = 1.0\ndef r(x):\n    return x * helper.k",
        "helper.k = 5.0",
    ),
    "attribute of itself": ("def r(x):\n    return x * r.k\nr.k = 1.0", "r.k = 5.0"),
    "class of a bound method": (
        "class S:\n    k = 1.0\n    def f(self, x):\n        return x * self.k\nr = S().f",
        "S.k = 5.0",
    ),
    "class method": (
        (
            "class S:\n    k = 1.0\n    @classmethod\n    def f(cls, x):\n        return x * cls.k\n"
            "r = S.f"
        ),
        "S.k = 5.0",
    ),
    "from pkg.sub import K": (
        "def r(x):\n    from userpkg.sub import K\n    return x * K",
        "sub.K = 5.0",
    ),
    "import pkg.sub as s": (
        "def r(x):\n    import userpkg.sub as s\n    return x * s.K",
        "sub.K = 5.0",
    ),
    "import pkg.sub": (
        "def r(x):\n    import userpkg.sub\n    return x * userpkg.sub.K",
        "sub.K = 5.0",
    ),
    "from pkg.sub import fn": (
        "def r(x):\n    from userpkg.sub import fn\n    return fn(x)",
        "sub.K = 5.0",
    ),
    "from .sub import K": (
        "__package__ = 'userpkg'\ndef r(x):\n    from .sub import K\n    return x * K",
        "sub.K = 5.0",
    ),
    "from . import sub": (
        "__package__ = 'userpkg'\ndef r(x):\n    from . import sub\n    return x * sub.K",
        "sub.K = 5.0",
    ),
    "pkg.sub.K": ("import userpkg\ndef r(x):\n    return x * userpkg.sub.K", "sub.K = 5.0"),
    "pkg.sub.fn": ("import userpkg\ndef r(x):\n    return userpkg.sub.fn(x)", "sub.K = 5.0"),
    "module in a dict": (
        "import userpkg\nD = {'a': userpkg.sub}\ndef r(x):\n    return x * D['a'].K",
        "sub.K = 5.0",
    ),
    "module from a helper": (
        "import userpkg\ndef h():\n    return userpkg\ndef r(x):\n    return x * h().sub.K",
        "sub.K = 5.0",
    ),
    "attribute in a match": (
        (
            "import userpkg\ndef r(x):\n    match userpkg:\n        case object(K=k):\n"
            "            return x * k"
        ),
        "pkg.K = 5.0",
    ),
    "enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1.0\ndef r(x):\n    return x * E.A.value",
        "class E(enum.Enum):\n    A = 5.0",
    ),
    "property of a named tuple": (
        (
            "import typing\nclass P(typing.NamedTuple):\n    k: float = 1.0\n    @property\n"
            "    def q(self):\n        return 2.0\np = P()\ndef r(x):\n    return x * p.q"
        ),
        "P.q = property(lambda self: 7.0)",
    ),
    "function that torch closes over": (
        "import torch\nk = 1.0\ndef f(x):\n    return x * k\nr = torch.func.grad(f)",
        "k = 5.0",
    ),
    "method in C of a dict": (
        "D = {'k': 1.0}\nget = D.get\ndef r(x):\n    return x * get('k')",
        "D['k'] = 5.0",
    ),
}
REFUSED = {
    "vars": "class Cfg:\n    k = 1.0\ndef r(x):\n    return x * vars(Cfg)['k']",
    "__dict__": "class Cfg:\n    k = 1.0\ndef r(x):\n    return x * Cfg.__dict__['k']",
    "getattr": "import userpkg\ndef r(x):\n    return x * getattr(userpkg, 'K')",
    "getattr by another name": "import userpkg\nget = getattr\ndef r(x):\n    return get(userpkg, 'K')",
    "attrgetter": "import operator, userpkg\nget = operator.attrgetter('K')\n"
    "def r(x):\n    return x * get(userpkg)",
    "globals": "V = 1.0\ndef r(x):\n    return x * globals()['V']",
    "eval": "V = 1.0\ndef r(x):\n    return x * eval('V')",
    "import_module": "import importlib\ndef r(x):\n    return importlib.import_module('userpkg').K",
    "module not imported yet": "def r(x):\n    import wave_of_no_module\n    return x",
    "format": "import userpkg\ndef r(x):\n    return x * float('{0.K}'.format(userpkg))",
    "environment": "import os\ndef r(x):\n    return x * float(os.environ['K'])",
    "getenv": "import os\ndef r(x):\n    return x * float(os.getenv('K'))",
    "time": "import time\ndef r(x):\n    return x * time.time()",
    "function that NumPy holds": "import numpy\nk = 1.0\ndef f(x):\n    return x * k\n"
    "g = numpy.vectorize(f)\ndef r(x):\n    return g(x)",
    "function that torch has compiled": "import torch\ndef f(x):\n    return x * 2\n"
    "g = torch.jit.trace(f, torch.ones(2))\ndef r(x):\n    return g(x)",
    "file": "def r(x):\n    return x * float(open('k').read())",
    "method of an object with slots": "class S:\n    __slots__ = ('k',)\n    def f(self, x):\n"
    "        return x * self.k\ns = S()\ns.k = 1.0\nr = s.f",
    "attributes that a module makes": "import userlazy\ndef r(x):\n    return x * userlazy.K",
}
TOLD = {  # what versions stand for costs no bypass
    "torch": "import math\nimport torch\nfrom torch import sin\nfrom torch.nn import functional as F\n"
    "def r(x):\n    import torch.nn.functional as G\n    return G.relu(F.gelu(sin(x))) * math.pi",
    "class of classes": "import abc\nclass A(abc.ABC):\n    k = 1.0\n    @abc.abstractmethod\n"
    "    def f(self): ...\nclass B(A):\n    def f(self):\n        return self.k\n"
    "def r(x):\n    return x * B().f()",
}


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """A package with a module in it, and one whose attributes a function makes."""
    pkg, sub, lazy = (ModuleType(name) for name in ("userpkg", "userpkg.sub", "userlazy"))
    exec("K = 1.0\ndef fn(x):\n    return x * K", vars(sub))
    exec("K = 1.0", vars(pkg))
    exec("def __getattr__(name):\n    if name != 'K': raise AttributeError", vars(lazy))
    pkg.sub = sub  # type: ignore[attr-defined]
    pkg.__path__ = []
    for module in (pkg, sub, lazy):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return {"pkg": pkg, "sub": sub}


def hashed(scope: dict[str, Any]) -> str:
    example = (torch.randn(3, 4),)
    return rule_hash(fusepass.Rule("tried", lambda x: x * 2, scope["r"], example, place="after"))


@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name: str, packages: dict[str, ModuleType]) -> None:
    text, change = FOLLOWED[name]
    scope: dict[str, Any] = {"__name__": "rules_of_a_user", **packages}
    exec(text, scope)
    before = hashed(scope)
    assert hashed(scope) == before
    exec(change, scope)
    assert hashed(scope) != before


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    scope: dict[str, Any] = {"__name__": "rules_of_a_user"}
    exec(REFUSED[name], scope)
    with pytest.raises(Unhashable):
        hashed(scope)


@pytest.mark.parametrize("name", TOLD)
def test_told(name: str) -> None:
    scope: dict[str, Any] = {"__name__": "rules_of_a_user"}
    exec(TOLD[name], scope)
    assert hashed(scope) == hashed(scope)


class Scale:
    """What the replacement below computes with."""

    k = 1.0


def set_class(value: float) -> None:
    Scale.k = value


def set_environment(value: float) -> None:
    os.environ["FUSEPASS_TEST_SCALE"] = str(value)


def by_class(x: Tensor) -> Tensor:
    return torch.sin(x) * Scale.k


def by_getattr(x: Tensor) -> Tensor:
    return torch.sin(x) * getattr(Scale, "k")  # noqa: B009 - what is tested


def by_environment(x: Tensor) -> Tensor:
    return torch.sin(x) * float(os.environ["FUSEPASS_TEST_SCALE"])


class TestThroughTheCache:
    """The same program compiled anew after a value has changed computes with the new one."""

    @pytest.fixture(autouse=True)
    def _folder(self, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("FUSEPASS_TEST_SCALE", "1.0")
        yield
        fusepass.reset()

    @pytest.mark.parametrize(
        ("replacement", "change"),
        [(by_class, set_class), (by_getattr, set_class), (by_environment, set_environment)],
    )
    def test_new_value(
        self, replacement: Callable[[Tensor], Tensor], change: Callable[[float], None]
    ) -> None:
        rule = fusepass.Rule(
            "tried", lambda x: torch.sin(x) + 1.0, replacement, (torch.randn(4, 8),), place="after"
        )
        x = torch.ones(2, 3)
        change(1.0)
        with fusepass.rules(rule):
            for value in (1.0, 5.0):
                change(value)
                fusepass.reset()
                got = torch.compile(lambda x: torch.sin(x) + 1.0, backend="fusepass")(x)
                torch.testing.assert_close(got, torch.sin(x) * value)
