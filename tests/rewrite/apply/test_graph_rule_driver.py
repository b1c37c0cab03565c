"""The driver: a rule acts everywhere or nowhere, and one that goes wrong never costs the program."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass import backend, errors
from fusepass.capture.nodes.select_node import select
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.options import Options, resolve
from fusepass.report.decision import Decision, Outcome, Reason
from fusepass.rewrite import registry
from fusepass.rewrite.apply.graph_rule_driver import rewrite
from fusepass.rewrite.rule import GraphRule, Reject, RuleSite

Install = Callable[..., None]


def is_mul(node: fx.Node) -> bool:
    return op_name(node) == "mul"


def rule(replace: Callable[[RuleSite], None], **changes: Any) -> GraphRule:
    given = {"anchor": is_mul, "check": lambda match: None, "replace": replace} | changes
    return GraphRule("tried", summary="twice is a sum", **given)


def by(call: Callable[..., Any], *more: Any, note: Any = None) -> Callable[[RuleSite], None]:
    """A replacement of ``x * c`` by ``call(x, *more)``, noting the value ``note`` gives, if any."""

    def replace(match: RuleSite) -> None:
        node = match.anchor
        with match.gm.graph.inserting_before(node):
            new = match.gm.graph.call_function(call, (node.args[0], *more))
        if note is not None:
            new.meta["example_value"] = note(node)
        node.replace_all_uses_with(new)
        match.gm.graph.erase_node(node)

    return replace


def doubled(x: Tensor) -> Tensor:
    return torch.add(x, x)


def raises(match: RuleSite) -> None:
    raise ZeroDivisionError("in the rule")


def second_raises(match: RuleSite) -> None:
    """The first site is rewritten, wrongly; at the second the rule fails."""
    if any(node.target is torch.sub for node in match.gm.graph.nodes):
        raise ZeroDivisionError("in the rule")
    by(torch.sub, 1)(match)


def breaks_the_graph(match: RuleSite) -> None:
    last = next(iter(reversed(match.gm.graph.nodes)))
    with match.gm.graph.inserting_before(last):
        late = match.gm.graph.call_function(doubled, (match.anchor.args[0],))
    match.anchor.replace_all_uses_with(late)


def adds_a_module_and_raises(match: RuleSite) -> None:
    match.gm.add_submodule("left_behind", torch.nn.Identity())
    raise ZeroDivisionError("in the rule")


def drops_an_output(match: RuleSite) -> None:
    output = next(iter(reversed(match.gm.graph.nodes)))
    output.args = (output.args[0][:1],)  # type: ignore[index]


def of_the_node(node: fx.Node) -> Any:
    return node.meta["example_value"]


def in_double(node: fx.Node) -> Any:
    return node.meta["example_value"].double()


def to_double(x: Tensor) -> Tensor:
    return torch.add(x, x).double()


def transposed(x: Tensor) -> Tensor:
    return torch.add(x, x).t().contiguous().t()


def enlarged(x: Tensor) -> Tensor:
    return torch.add(x, x).unsqueeze(0)


def program(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.cos() * 2
    return y, z


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put rules behind those that are on by default."""
    shipped = backend.graph_rules()

    def put(*rules: GraphRule) -> None:
        monkeypatch.setattr(backend, "graph_rules", lambda: (*shipped, *rules))

    return put


def run(
    function: Callable[..., Any] = program, x: Tensor | None = None, **options: Any
) -> list[Decision]:
    """Compile, compare with eager, and return what the tried rule has on record."""
    x = torch.randn(3, 4) if x is None else x
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"} | options)
    torch.testing.assert_close(compiled(x), function(x))
    report = fusepass.last_report(compiled)
    return [d for d in report.decisions if d.rule == "tried"]


def test_good_rule_acts_at_every_site(install: Install) -> None:
    install(rule(by(doubled)))
    decisions = run()
    assert [d.outcome for d in decisions] == [Outcome.APPLIED] * 2
    assert {d.reason_code for d in decisions} == {Reason.PROVED}
    assert {d.reason for d in decisions} == {"twice is a sum"}
    first = program.__code__.co_firstlineno
    assert [(d.file, d.line - first) for d in decisions] == [(__file__, 1), (__file__, 2)]


def test_check_rejects_a_site_at_a_time(install: Install) -> None:
    def check(match: RuleSite) -> Reject | None:
        after_cos = op_name(match.anchor.args[0]) == "cos"  # type: ignore[arg-type]
        return Reject(Reason.VARIANT, "after cos", match.anchor) if after_cos else None

    install(rule(by(doubled), check=check))
    assert [(d.outcome, d.reason_code) for d in run()] == [
        (Outcome.APPLIED, Reason.PROVED),
        (Outcome.REJECTED, Reason.VARIANT),
    ]


def test_rule_switched_off(install: Install) -> None:
    install(rule(raises))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "rule_names", lambda: ["tried"])
        decisions = run(rules={"tried": False})
    assert {(d.outcome, d.reason_code) for d in decisions} == {(Outcome.REJECTED, Reason.RULE_OFF)}


FAULTY: dict[str, tuple[GraphRule, str]] = {
    "replace raises": (rule(raises), "ZeroDivisionError: in the rule"),
    "raises at the second site": (rule(second_raises), "ZeroDivisionError"),
    "check raises": (rule(by(doubled), check=raises), "ZeroDivisionError"),
    "anchor raises": (rule(by(doubled), anchor=raises), "ZeroDivisionError"),  # type: ignore[arg-type]
    "raises after adding a module": (rule(adds_a_module_and_raises), "ZeroDivisionError"),
    "graph out of order": (rule(breaks_the_graph), "before it has been defined"),
    "an output goes": (rule(drops_an_output), "outputs"),
    "dtype, value not noted": (rule(by(to_double)), "float64"),
    "dtype, old value noted": (rule(by(to_double, note=of_the_node)), "float64"),
    "dtype, new value noted": (rule(by(to_double, note=in_double)), "float64"),
    "strides": (rule(by(transposed)), "strides"),
    "shape": (rule(by(enlarged)), r"\(1, 3, 4\)"),
    "call that cannot be made": (rule(by(torch.mm, 3)), "mm"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_rule_is_undone(name: str, install: Install) -> None:
    faulty, words = FAULTY[name]
    install(faulty)
    with pytest.warns(errors.RewriteFault, match=words) as caught:
        decisions = run()
    assert "'tried'" in str(caught[0].message)
    assert [(d.outcome, d.reason_code) for d in decisions] == [(Outcome.REJECTED, Reason.INTERNAL)]
    assert "undone" in decisions[0].reason


def test_value_inside_the_graph_changes(install: Install) -> None:
    """Not only outputs: what a later call reads must keep its dtype."""

    def inner(x: Tensor) -> Tensor:
        y = x * 2
        return (y.cos() + 1).float()

    install(rule(by(to_double)))
    with pytest.warns(errors.RewriteFault, match="float64"):
        decisions = run(inner)
    assert [(d.outcome, d.reason_code) for d in decisions] == [(Outcome.REJECTED, Reason.INTERNAL)]


def test_fault_does_not_reach_other_rules(install: Install) -> None:
    install(rule(by(to_double)), GraphRule("good", is_mul, lambda match: None, by(doubled)))
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.warns(errors.RewriteFault):
        compiled(torch.ones(2, 2))
    found = [(d.rule, d.outcome) for d in fusepass.last_report(compiled).decisions]
    assert found.count(("good", Outcome.APPLIED)) == 2


def test_verify_off_checks_nothing_but_still_undoes(install: Install) -> None:
    x = torch.ones(2, 2)
    install(rule(by(to_double)))
    options = {"codegen": "eager", "verify": False}
    compiled = torch.compile(program, backend="fusepass", options=options)
    assert compiled(x)[0].dtype is torch.float64
    fusepass.reset()
    install(rule(second_raises))
    with pytest.warns(errors.RewriteFault):
        run(verify=False)


def test_faulty_rule_through_inductor(install: Install) -> None:
    def product(x: Tensor) -> Tensor:
        return (x * 2) @ x

    install(rule(raises))
    with pytest.warns(errors.RewriteFault):
        decisions = run(product, torch.randn(3, 3), codegen="inductor")
    assert [d.reason_code for d in decisions] == [Reason.INTERNAL]


def test_autocast_block_is_no_fault(install: Install) -> None:
    """A call inside it gives bfloat16, which it would not by itself."""

    def mixed(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x * 2
            return (y @ y.t()) * 2

    install(rule(by(doubled)))
    assert {d.outcome for d in run(mixed)} == {Outcome.APPLIED}


def test_autocast_around_the_call_is_no_fault(install: Install) -> None:
    install(rule(by(doubled)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {d.outcome for d in run(lambda x: (x @ x.t()) * 2)} == {Outcome.APPLIED}


def test_writes_and_dynamic_shapes_are_no_fault(install: Install) -> None:
    def writes(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1).unsqueeze_(0)
        return y * x.shape[0]

    install(
        rule(
            by(doubled),
            check=lambda m: Reject(Reason.VARIANT, "") if m.anchor.args[1] != 2 else None,
        )
    )
    x = torch.randn(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    assert Outcome.APPLIED in {d.outcome for d in run(writes, x)}


def test_rule_acts_inside_the_arms_of_a_cond(install: Install) -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x.cos()

    install(rule(by(doubled)))
    assert [d.outcome for d in run(branch, treatment="cond")] == [Outcome.APPLIED]


@pytest.mark.parametrize("broken", [raises, second_raises])
def test_rule_settled_by_capture_fails_loudly(
    broken: Callable[[RuleSite], None], install: Install
) -> None:
    """Without it a graph may have gradients that eager does not have."""
    install(rule(broken, settled_by_capture=True))
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(errors.RuleError, match=r"'tried' \(.*test_graph_rule_driver.py:\d+\)"):
        compiled(torch.ones(2, 2))


def branches(x: Tensor) -> Tensor:
    y = x * 2 if x.sum() > 0 else x.cos()
    return y + 1 if y.max() > 3 else y - 1


def test_branches_whose_own_rule_fails_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = backend.graph_rules()
    broken = rule(raises, anchor=lambda node: node.target is select, settled_by_capture=True)
    monkeypatch.setattr(backend, "graph_rules", lambda: (broken, *shipped))
    compiled = torch.compile(branches, backend="fusepass", options={"codegen": "eager"})
    x = torch.ones(2, 2)
    with pytest.warns(errors.CaptureFault, match="in the rule"):
        assert torch.equal(compiled(x), branches(x))
    assert torch.equal(compiled(x * 4), branches(x * 4))
    kept = fusepass.last_report(compiled).decisions
    assert {(d.treatment, d.reason_code) for d in kept if d.rule == "branch"} == {
        ("keep", Reason.INTERNAL)
    }


def test_a_rule_that_may_move_results_is_put_back_without_a_fault(install: Install) -> None:
    """Where the graph's own result would have other strides; inside of it they may move."""

    def columns(x: Tensor) -> Tensor:
        return torch.mul(x.t().contiguous(), 2).t()

    install(rule(by(columns), moves=True))
    put_back = Outcome.REJECTED, Reason.STRIDE_MISMATCH
    assert [(d.outcome, d.reason_code) for d in run(program)] == [put_back, put_back]
    assert [d.outcome for d in run(lambda x: (x * 2).sum(1))] == [Outcome.APPLIED]


class TestGraphs:
    """What becomes of the graph object itself."""

    @pytest.fixture
    def gm(self) -> fx.GraphModule:
        gm = fx.symbolic_trace(program)
        with torch._subclasses.FakeTensorMode() as mode:
            x = torch.empty(3, 4)
        with mode:
            env: dict[fx.Node, Any] = {}
            for node in gm.graph.nodes:
                if node.op == "placeholder":
                    env[node] = x
                elif node.op != "output":
                    args = fx.map_arg(node.args, env.__getitem__)
                    call = node.target
                    env[node] = call(*args) if callable(call) else getattr(args[0], call)(*args[1:])
                node.meta["example_value"] = env.get(node)
        return gm

    def test_untouched_without_accepted_sites(self, gm: fx.GraphModule) -> None:
        graph = gm.graph
        no = Reject(Reason.VARIANT, "no")
        decisions = rewrite(gm, (rule(raises, check=lambda match: no),), Options())
        assert gm.graph is graph
        assert len(decisions) == 2

    def test_undone_graph_is_the_graph_before(self, gm: fx.GraphModule) -> None:
        before = str(gm.graph)
        with pytest.warns(errors.RewriteFault):
            rewrite(gm, (rule(second_raises), rule(adds_a_module_and_raises)), Options())
        assert str(gm.graph) == before
        assert not list(gm.named_children())
        assert all(tensor_value(n) is not None for n in gm.graph.nodes if n.op != "output")
        x = torch.randn(3, 4)
        torch.testing.assert_close(gm(x), program(x))

    def test_new_calls_get_their_values(self, gm: fx.GraphModule) -> None:
        rewrite(gm, (rule(by(doubled)),), Options())
        values = [tensor_value(n) for n in gm.graph.nodes if n.target is doubled]
        assert [tuple(v.shape) for v in values if v is not None] == [(3, 4), (3, 4)]

    def test_order_of_rules_is_priority(self, gm: fx.GraphModule) -> None:
        first = rule(by(operator.add, 0))
        decisions = rewrite(gm, (first, rule(raises)), resolve())
        assert [d.outcome for d in decisions] == [Outcome.APPLIED] * 2
