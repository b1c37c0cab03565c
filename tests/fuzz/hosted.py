"""Tensors made on the CPU and moved to where the data are."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Lines, Scope, atom

FORMS = {"host_factory": 5, "host_literal": 5, "host_mask": 4, "host_random": 4}
_FACTORIES = (
    "torch.arange({n})",
    "torch.ones({n})",
    "torch.full(({n},), 0.1)",
    "torch.zeros({shape})",
    "torch.linspace(0, 1, {n})",
    "torch.arange({n}).float() * 0.5",
)
_LITERALS = ("torch.tensor({list})", "torch.tensor(0.1)", "torch.tensor({list}).half()")
_MASKS = (
    "torch.eye({n})[0]",
    "torch.ones({n}, {n}).tril()[-1]",
    "torch.full(({n}, {n}), -inf).triu(1)[0]",
    "(torch.arange({n}) > 1)",
    "torch.ones({n}, dtype=torch.bool)",
)
_RANDOM = ("torch.randn({n})", "torch.rand({shape})", "(torch.rand({n}) > 0.5)")
_MOVES = {
    "{0}.to({1}.device)": 5,
    "{0}.to({1})": 2,
    "{0}.to(device={1}.device, dtype={1}.dtype)": 1,
}


def statement(d: Draft, scope: Scope) -> Lines:
    """A tensor of the CPU, now and then written before it moves, and what is computed with it."""
    form = d.draw.weighted(FORMS)
    texts = {
        "host_factory": _FACTORIES,
        "host_literal": _LITERALS,
        "host_mask": _MASKS,
        "host_random": _RANDOM,
    }
    with d.trip(form) as mark:
        operand, n = d.draw.choice(scope.data), d.shape[-1]
        values = [0.1, 0.25, -3.0, 1e-8][:n]
        made = d.draw.choice(texts[form]).format(
            n=n, shape=", ".join(map(str, d.shape)), list=values
        )
        name, after, lines = d.fresh("host", scope), d.fresh("y"), []
        move = d.draw.weighted(_MOVES)
        if d.draw.chance(25) and "tensor(0.1)" not in made:
            before = d.fresh("made", scope)
            write = d.draw.choice(("{0}[..., 0] = 1", "{0} = {0}.flip(0)", "{0}[..., 1:] = 0"))
            lines = [f"{before} = {made}", write.format(before)]
            made = before
        lines.append(f"{name} = {move.format(atom(made), operand)}{mark}")
        if d.draw.chance(20):
            lines.append(f"{name} = {name} + 1")
        use = d.draw.choice(("{0} * {1}", "{0} + {1}", "torch.where({1} > 0, {0}, 0.5)"))
        lines.append(f"{after} = {use.format(operand, name)}")
        if form == "host_random":
            for site in d.sites:
                if not site.trip:
                    site.shapes.add("random_after")
        scope.add(after)
        return lines
