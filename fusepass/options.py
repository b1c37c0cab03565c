"""One frozen, validated value of options; ``mode`` and ``options`` of torch.compile end here.

Precedence, weakest first: defaults, ``with fusepass.options(...)`` scopes (outermost first), the
``mode``/``options`` given to torch.compile. A scope is read when a callable is compiled or
recompiled, not when torch.compile is called. Which rules there are is not known here:
:mod:`fusepass.rewrite.option_scope` checks their names.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fusepass.errors import ArgumentType, OptionType, OptionValue, UnknownOption, current_name

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
TREATMENTS = ("auto", "where", "cond", "keep")
CODEGENS = ("inductor", "eager", "eager-decomposed")
CANDIDATES = ("auto", "reference", "inductor")
_INDUCTOR = "inductor."
# Option to its values, or keys of its value, that 0.1 spelled in another way.
RENAMED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"rules": {"recipes": "inductor_configs", "conv_product": "conv_1x1"}}
)


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        mode: what it means for Inductor: one of :data:`MODES`.
        rules: rule name to False (off) or True (on, the default).
        treatment: for branches on a tensor: ``auto`` decides per site; ``where`` and
            ``cond`` force that form where it is legal; ``keep`` turns capture off.
        candidate: which way to compute fused ops: ``auto`` by measurement, ``reference`` the plain
            PyTorch body on any device, ``inductor`` never a kernel of ours.
        codegen: ``inductor``; ``eager`` runs the rewritten graph op by op; ``eager-decomposed``
            the same after AOTAutograd and Inductor's decompositions.
        verify: check shapes, dtypes and strides after each rewrite (a fault undoes the rewrite).
        defer_prints: write what ``print``, loggers and ``warnings.warn`` are given after the graph
            instead of breaking it there.
        allow_zero_grad: a leaf used in one arm only may get a zero instead of a None gradient.
        allow_fresh_output: a branch may return a fresh tensor where eager returns its
            input itself.
        allow_hidden_nan: NaN and infinity in keys and values that a causal mask, known when
            compiling, hides may stay out of the rows they are hidden from.
        reuse_regions: compile equal layers of a model once and call the result for each, where no
            gradients are wanted: much less to compile, some microseconds of host per layer and
            call.
        host_random: random numbers that are drawn on the CPU and copied to a device may be drawn
            there: other numbers, and the generator of the CPU stays where it is.
        non_blocking: copies of pinned inputs to a device do not wait. The host must not write such
            an input before the copy has run.
        frozen: weights and buffers do not change any more: where no gradients are recorded they
            become constants of the compiled code, folded and laid out as its kernels want them.
            A change that is noticed raises; one through ``.data`` is not.
        max_saved_bytes: what an arm may keep for its backward and still be run unneeded, in bytes;
            None for the larger of 64 MiB and 2 % of the device's memory.
        inductor: Inductor config keys (without the ``inductor.`` prefix) to values.
    """

    mode: str = "default"
    rules: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    treatment: str = "auto"
    candidate: str = "auto"
    codegen: str = "inductor"
    verify: bool = True
    defer_prints: bool = True
    allow_zero_grad: bool = False
    allow_fresh_output: bool = False
    allow_hidden_nan: bool = False
    reuse_regions: bool = False
    host_random: bool = False
    non_blocking: bool = False
    frozen: bool = False
    max_saved_bytes: int | None = None
    inductor: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def rule_on(self, name: str) -> bool:
        """Whether the rule of that name may act."""
        return self.rules.get(name, True)

    def inductor_value(self, key: str) -> Any:
        """What Inductor will be told for one of its settings: the user's option, or its config."""
        from fusepass.torch_private.inductor.compile import (
            inductor_config_value,  # here, because `import fusepass` needs no torch
        )

        return self.inductor.get(key, inductor_config_value(key))

    def fingerprint(self) -> str:
        """A stable text of what can change generated code (used in cache keys).

        Inductor's own keys are left out: Inductor hashes its config by itself, passes by their
        uuid.
        """
        plain = [self.mode, self.treatment, self.candidate, self.codegen, self.frozen]
        return repr((plain, self.verify, sorted(self.rules.items())))


_FIELDS = {f.name: f for f in dataclasses.fields(Options) if f.name != "inductor"}
_CHOICES = {
    "mode": MODES,
    "treatment": TREATMENTS,
    "candidate": CANDIDATES,
    "codegen": CODEGENS,
}
_FLAGS = {name for name, f in _FIELDS.items() if f.type == "bool"}
SCOPES: contextvars.ContextVar[tuple[Mapping[str, Any], ...]] = contextvars.ContextVar(
    "fusepass_options", default=()
)


def resolve(mode: str | None = None, given: Mapping[str, Any] | None = None) -> Options:
    """Merge defaults, active scopes and what torch.compile was given into one value.

    Raises:
        UnknownOption: a key that does not exist.
        OptionType: a value of the wrong type.
        OptionValue: a value that is not one of those allowed.
        ArgumentType: what torch.compile was given is no mapping.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentType("torch.compile(options=…)", given, "a dict of options")
    merged: dict[str, Any] = {}
    given = with_current_names(given or {})
    for layer in (*SCOPES.get(), {} if mode is None else {"mode": mode}, given):
        rules = [source.get("rules") for source in (merged, layer)]
        merged.update(layer)
        if all(isinstance(names, Mapping) for names in rules):  # each rule is an option of its own
            merged["rules"] = {**rules[0], **rules[1]}  # type: ignore[dict-item]
    return build(merged)


def with_current_names(given: Mapping[str, Any], stacklevel: int = 4) -> Mapping[str, Any]:
    """Options whose values are spelled as they are now; warns of each old spelling."""
    found = dict(given)
    for key, renamed in RENAMED.items():
        value = found.get(key)
        if isinstance(value, str):
            found[key] = current_name(f"the value of {key!r},", value, renamed, stacklevel)
        elif isinstance(value, Mapping):
            names = {}
            for name, on in value.items():
                names[current_name("the rule", name, renamed, stacklevel)] = on
            found[key] = names
    return found


def build(given: Mapping[str, Any]) -> Options:
    """The options that a mapping of keys and values stands for, without any scope.

    Raises:
        UnknownOption, OptionType, OptionValue: as :func:`resolve`.
    """
    plain: dict[str, Any] = {}
    inductor: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise OptionType("options", key, "a mapping with string keys")
        if key.startswith(_INDUCTOR):
            from fusepass.torch_private.inductor.compile import (
                checked_inductor_option,  # here, because `import fusepass` needs no torch
            )

            name = key[len(_INDUCTOR) :].replace("-", "_")
            inductor[name] = checked_inductor_option(name, value, key)
        elif key not in _FIELDS:
            from fusepass.torch_private.inductor.trial_compile import is_inductor_option

            known = [*_FIELDS, "inductor.<key of torch._inductor.config>"]
            theirs = is_inductor_option(key.replace("-", "_"))
            hint = f"Inductor's own go in with a prefix: {_INDUCTOR + key!r}." if theirs else ""
            raise UnknownOption(key, known, hint=hint)
        else:
            plain[key] = _checked(key, value)
    return Options(**plain, inductor=MappingProxyType(inductor))


def _checked(key: str, value: Any) -> Any:
    if key in _CHOICES:
        if key == "mode" and value is None:
            return "default"
        if not isinstance(value, str):
            raise OptionType(key, value, "a string")
        if value not in _CHOICES[key]:
            raise OptionValue(key, value, _CHOICES[key])
    elif key in _FLAGS and not isinstance(value, bool):
        raise OptionType(key, value, "True or False")
    elif key == "max_saved_bytes" and value is not None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionType(key, value, "a number of bytes, or None")
        if value < 0:
            raise OptionValue(key, value, ["None", "0 or more bytes"])
    elif key == "rules":
        if not isinstance(value, Mapping):
            raise OptionType(key, value, "a dict of rule name to True or False")
        for name, on in value.items():
            if not isinstance(name, str) or not isinstance(on, bool):
                raise OptionType(key, value, "a dict of rule name to True or False")
        return MappingProxyType(dict(value))
    return value
