"""Which of the theory's assumptions a head meets: holds, doubtful or fails, with the number behind each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metastable import notebook

if TYPE_CHECKING:
    from metastable.theory import Theory

SINGULAR = 1e-12
"""B counts as singular when σ_min ≤ SINGULAR·σ_max."""


@dataclass(frozen=True)
class AssumptionCheck:
    """One assumption: its status, the number behind it, and a sentence for people."""

    name: str
    status: str
    number: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.status} ({self.number:.3g}). {self.sentence}"


@dataclass(frozen=True)
class Verdict:
    """All checks of one head. `status` is the worst of them."""

    checks: tuple[AssumptionCheck, ...]

    @property
    def status(self) -> str:
        found = {check.status for check in self.checks}
        return next(s for s in ("fails", "doubtful", "holds") if s in found)

    @property
    def unmet(self) -> list[str]:
        """The names of the checks that do not hold, with their status."""
        return [f"{check.name} ({check.status})" for check in self.checks if check.status != "holds"]

    def __getitem__(self, name: str) -> AssumptionCheck:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check named {name!r}; there are {[c.name for c in self.checks]}")

    def _repr_html_(self) -> str:
        """The verdict in a notebook."""
        rows = {c.name: f"{c.status} ({notebook.number(c.number)}). {c.sentence}" for c in self.checks}
        states = {c.name: c.status for c in self.checks}
        held = sum(status == "holds" for status in states.values())
        label = f"{held} of {len(states)} assumptions hold"
        return notebook.table(f"assumptions: {self.status}", rows, notebook.lights(states, label))

    def __str__(self) -> str:
        return "\n".join([f"assumptions: {self.status}", *(f"  {check}" for check in self.checks)])


def judge(theory: Theory) -> Verdict:
    """Every check that applies to the head."""
    checks = [_interaction, _real, _semisimple, _gap, _positive, _normal, _eigenbasis, _terminal]
    if theory.head.offset is not None:
        checks.append(_linear)
    return Verdict(tuple(check(theory) for check in checks))


def _interaction(th: Theory) -> AssumptionCheck:
    d, k, s = th.head.dim, th.head.rank, th.interaction_values
    name = "B invertible"
    undefined = "the field is undefined where Bᵀx = 0, a null set"
    if float(s[0]) == 0:
        return AssumptionCheck(name, "fails", 0.0, "B = 0: every token sees all others alike, at every temperature.")
    ratio = float(s[-1] / s[0])
    if k < d:
        rank = int((s > SINGULAR * s[0]).sum())
        allowed = "" if rank == k else f" (its factors would allow {k})"
        return AssumptionCheck(name, "fails", 0.0, f"B has rank {rank}{allowed} in dimension {d}: {undefined}.")
    if ratio <= SINGULAR:
        return AssumptionCheck(name, "fails", ratio, f"B is singular: {undefined}.")
    if ratio < 1e-6:
        return AssumptionCheck(
            name, "doubtful", ratio, "B is close to singular: the field is very steep near its kernel."
        )
    return AssumptionCheck(name, "holds", ratio, "B is invertible; the number is σ_min/σ_max.")


def _real(th: Theory) -> AssumptionCheck:
    a = th.attention
    if a.rotates:
        pair = f"{a.leading:.4g} ± {a.frequency:.4g}i"
        return AssumptionCheck(
            "λ₁ real", "fails", a.frequency, f"Complex dominant pair {pair}: tokens rotate, no limit point."
        )
    return AssumptionCheck("λ₁ real", "holds", a.leading, f"λ₁ = {a.leading:.4g} is real.")


def _semisimple(th: Theory) -> AssumptionCheck:
    a, name = th.attention, "λ₁ semisimple"
    if a.rotates:
        return AssumptionCheck(name, "doubtful", math.nan, "Not examined: the dominant pair is complex.")
    if not a.semisimple:
        status = "fails" if a.defect > 1e-3 else "doubtful"
        block = f"λ₁ has multiplicity {a.multiplicity} and a Jordan block"
        return AssumptionCheck(name, status, a.defect, f"{block}: convergence is algebraic in time, not exponential.")
    words = "simple" if a.multiplicity == 1 else f"semisimple of multiplicity {a.multiplicity}"
    return AssumptionCheck(name, "holds", a.defect, f"λ₁ is {words}; dim E = {a.dim}.")


def _gap(th: Theory) -> AssumptionCheck:
    a, name = th.attention, "gap > 0"
    if math.isinf(a.gap):
        what = "M = 0" if a.norm == 0 else "every eigenvalue is dominant"
        return AssumptionCheck(
            name, "fails", 0.0, f"No gap: {what}, so attention selects no directions at zero temperature."
        )
    ratio = a.gap / float(a.eigenvalues.abs().max())
    numbers = f"g = {a.gap:.4g}, g/max|λ| = {ratio:.3g}"
    if ratio > 1e-3:
        return AssumptionCheck(name, "holds", a.gap, f"λ₁ is separated: {numbers}.")
    return AssumptionCheck(
        name, "doubtful", a.gap, f"λ₁ is barely separated and concentration takes very long: {numbers}."
    )


def _positive(th: Theory) -> AssumptionCheck:
    a, name = th.attention, "Re λ₁ > 0 if B is singular"
    if not th.singular:
        return AssumptionCheck(name, "holds", a.leading, "Not needed: B is invertible.")
    if a.leading > a.tolerance:
        return AssumptionCheck(name, "holds", a.leading, "Tokens leave the kernel of B for the dominant eigenspace.")
    nowhere = "attention does not concentrate tokens anywhere of its own"
    return AssumptionCheck(name, "fails", a.leading, f"The dominant eigenspace is the kernel of M: {nowhere}.")


def _normal(th: Theory) -> AssumptionCheck:
    norm = th.attention.projector_norm
    status = "holds" if norm < 10 else "doubtful" if norm < 1e6 else "fails"
    return AssumptionCheck(
        "M near normal", status, norm, "The number is ‖Π‖: 1 for an orthogonal projector, large for an oblique one."
    )


def _eigenbasis(th: Theory) -> AssumptionCheck:
    cond = th.attention.eigenbasis_condition
    status = "holds" if cond < 1e3 else "doubtful" if cond < 1e8 else "fails"
    return AssumptionCheck(
        "eigenbasis conditioned", status, cond, "The number is the condition number of M's eigenvectors."
    )


def _terminal(th: Theory) -> AssumptionCheck:
    t, name = th.terminal, "terminal phase of V"
    if t.rotates:
        pair = f"{t.leading:.4g} ± {t.frequency:.4g}i"
        return AssumptionCheck(
            name, "fails", t.frequency, f"V has a complex dominant pair {pair}: late clusters circle."
        )
    if t.leading < -t.tolerance:
        return AssumptionCheck(
            name, "fails", t.leading, "V's largest eigenvalue is negative: late clusters come apart."
        )
    if t.leading <= t.tolerance:
        return AssumptionCheck(
            name, "doubtful", t.leading, "V's largest eigenvalue is 0: late clusters neither narrow nor spread."
        )
    where = f"move to V's dominant eigenspace (dim {t.dim})"
    return AssumptionCheck(name, "holds", t.leading, f"Late clusters narrow at rate {t.leading:.4g} and {where}.")


def _linear(th: Theory) -> AssumptionCheck:
    assert th.head.offset is not None
    ratio = float(th.head.offset.norm()) / max(float(th.interaction_values[0]), 1e-300)
    status = "holds" if ratio < 1e-6 else "doubtful" if ratio < 0.1 else "fails"
    return AssumptionCheck("scores linear", status, ratio, "The number is |a|/‖B‖: the theory has no score offset a.")
