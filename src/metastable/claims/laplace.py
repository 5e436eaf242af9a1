"""The Laplace principle: m_β[μ](x) tends to û = Bᵀx/|Bᵀx|, at a rate that depends on the law μ near û.

The paper bounds sup_x |m_β − û| by a multiple of √(log(β+1)/β) for laws that are bounded below. With κ = β|Bᵀx|, the
softmax weights are a Gaussian of radius κ^{−1/2} around û, and to leading order (derived here)

    uniform        1 − A_d(κ) ≈ (d − 1)/2κ, with A_d = I_{d/2}/I_{d/2−1}, exactly
    smooth f       (1/κ) √( ((d − 1)/2)² + |∇ log f(û)|² )
    jump 1 : h     κ^{−½} G(h),  G(h) = max_j (1 − h) n(j)/(h N(j) + 1 − N(j)),  û at the distance jκ^{−½} from the jump
    atom           κ^{−½} max_σ σρ/(1 + ρ),  ρ = a (κ/2π)^{(d−1)/2} e^{−σ²/2}, for density 1 and an atom of mass a at
                   the distance σκ^{−½} from û: it outweighs the rest up to σ² ≈ (d − 1) log κ

(n and N are the normal density and distribution). So the slopes are −1, −1, −½, and for the atom −½ with a logarithm,
κ·gap² ~ (d − 1) log κ: among laws that are merely bounded below, the paper's bound cannot be improved.

The package's attention takes the means over quadratures that resolve every β; there is no sampling. A quadrature is a
weighted cloud for one query κû: Gauss–Legendre panels double in length from half of the radius κ^{−1/2} outwards, end
where e^{−κ(1 − cos)} is below rounding, and break where a density jumps. A density is a function of z, the last
coordinate, with respect to the uniform law; it need not be normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.special import ive
from scipy.stats import norm

from metastable.attention import attend
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, line, size, told
from metastable.cloud import Cloud
from metastable.head import Head

SLOPE_TOLERANCE = 0.02
"""Of a slope over the upper half of the β's: the next order is κ^{−½} relative, 0.03 at β = 10³ and less beyond."""
CONSTANT_TOLERANCE = 0.02
"""Of the leading constant at the largest β: κ^{−½} is 0.003 there, and the grid of û misses a maximum by up to 1 %."""
CLOSED_FORM = 1e-6
"""Largest relative error against 1 − A_d(κ): the quadrature reaches 1e-10 in |m|, divided by a gap of 1e-5."""
GROWTH = 1.05
"""Largest growth of the constant of the paper's bound over the upper half of the β's."""
LOGARITHM = 0.5
"""Least slope of κ·gap² against log κ for the atom: d − 1 = 1 in the end, about ¾ at these β, 0 without a logarithm."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
REACH = 8.0
"""Panels begin within this many radii of û; beyond, the softmax weight is below e^{−32}."""
QUICK, FULL = (tuple(float(10**e) for e in np.linspace(1, 5, count)) for count in (9, 17))
"""The β's of the two sizes."""
JUMP_LOW = 0.2
"""h of the law with a jump."""
ATOM = 1.0
"""Mass of the atom; the density beside it is 1 per radian."""
SMOOTH_SLOPE = 2.0
"""The smooth law has the density e^{2z} (von Mises–Fisher)."""

Density = Callable[[np.ndarray], np.ndarray]
DENSITIES: dict[str, Density] = {
    "uniform": np.ones_like,
    "smooth": lambda z: np.asarray(np.exp(SMOOTH_SLOPE * z)),
    "jump": lambda z: np.where(z > 0, 1.0, JUMP_LOW),
}


def panels(centre: float, radius: float, low: float, high: float, breaks: Sequence[float] = ()) -> np.ndarray:
    """The ends of the panels on [low, high]: centre ± radius·(½, 1, 2, …), and `breaks`."""
    steps = 0.5 * radius * 2.0 ** np.arange(max(2, math.ceil(math.log2(4 * (high - low) / radius))))
    ends = np.concatenate([[centre, low, high], centre + steps, centre - steps, np.asarray(breaks, dtype=float)])
    return np.unique(ends[(ends >= low) & (ends <= high)])


def nodes(ends: np.ndarray, centre: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on the panels that come within `reach` of the centre; on all if reach ≥ 1."""
    a, b = ends[:-1], ends[1:]
    # Beyond an angle of 1 the cosine is no longer a parabola, and REACH radii are not enough.
    reach = reach if reach < 1 else math.inf
    near = (a < centre + reach) & (b > centre - reach)
    half, middle = 0.5 * (b - a)[near, None], 0.5 * (a + b)[near, None]
    return (middle + half * NODES).ravel(), (half * WEIGHTS).ravel()


def quadrature(law: str, direction: np.ndarray, kappa: float) -> Cloud:
    """The law as seen by the query κû: "uniform" for every d, "smooth" and "jump" for d ≤ 3, "atom" for d = 2."""
    if len(direction) == 2:
        return _on_circle(law, direction, kappa)
    return _on_sphere(law, direction, kappa) if len(direction) == 3 else _about_axis(direction, kappa)


def _on_circle(law: str, direction: np.ndarray, kappa: float) -> Cloud:
    """Angles φ of points (sin φ, cos φ), so that z = cos φ, the atom is at φ = 0 and the equator at φ = ±π/2."""
    centre, radius = math.atan2(direction[0], direction[1]), kappa**-0.5
    equators = [k * math.pi / 2 for k in range(-5, 6, 2)]
    phi, w = nodes(panels(centre, radius, centre - math.pi, centre + math.pi, equators), centre, REACH * radius)
    if law == "atom":
        phi, w = np.append(phi, 0.0), np.append(w, ATOM)
    else:
        w = w * DENSITIES[law](np.cos(phi))
    return Cloud(np.stack([np.sin(phi), np.cos(phi)], axis=1), weights=w)


def _on_sphere(law: str, direction: np.ndarray, kappa: float) -> Cloud:
    """Polar angle and azimuth, with z = cos of the polar angle."""
    polar = math.atan2(math.hypot(direction[0], direction[1]), direction[2])
    azimuth = math.atan2(direction[1], direction[0])
    radius = kappa**-0.5
    turned = radius / max(math.sin(polar), radius)
    theta, w = nodes(panels(polar, radius, 0.0, math.pi, [math.pi / 2]), polar, REACH * radius)
    # Circles of latitude near a pole are short, so the whole azimuth counts unless the cap is far from both poles.
    clear = REACH * radius < 0.5 * min(polar, math.pi - polar)
    far = REACH * turned if clear else math.inf
    psi, v = nodes(panels(azimuth, turned, azimuth - math.pi, azimuth + math.pi), azimuth, far)
    points = _polar(theta[:, None], psi).reshape(-1, 3)
    latitudes = w * np.sin(theta) * DENSITIES[law](np.cos(theta))
    return Cloud(points, weights=(latitudes[:, None] * v).ravel())


def _about_axis(direction: np.ndarray, kappa: float) -> Cloud:
    """The uniform law in any d: at the angle θ from û the density sin^{d−2} θ, at two opposite points of its circle."""
    d = len(direction)
    # sin^{d−2} θ e^{κ cos θ} is largest at this angle and falls off on this scale.
    cosine = 2 * kappa / (d - 2 + math.hypot(d - 2, 2 * kappa))
    centre = math.acos(cosine)
    radius = ((d - 2) / max(math.sin(centre) ** 2, 1e-300) + kappa * cosine) ** -0.5
    theta, w = nodes(panels(centre, radius, 0.0, math.pi), centre, REACH * radius)
    side = np.linalg.svd(direction[None, :])[2][1]
    along, across = np.cos(theta)[:, None] * direction, np.sin(theta)[:, None] * side
    masses = w * (np.sin(theta) / math.sin(centre)) ** (d - 2)
    return Cloud(np.concatenate([along + across, along - across]), weights=np.concatenate([masses, masses]))


def _polar(polar: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Points of the sphere with these polar angles and azimuths."""
    sine, cosine = np.sin(polar), np.cos(polar)
    return np.stack(np.broadcast_arrays(sine * np.cos(azimuth), sine * np.sin(azimuth), cosine), axis=-1)


def sources(head: Head, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The x that look in the given directions, Bᵀx ∝ û, and |Bᵀx|."""
    x = np.linalg.solve(head.B.numpy().T, directions.T).T
    sizes = 1 / np.linalg.norm(x, axis=1)
    return x * sizes[:, None], sizes


def everywhere(head: Head, n: int) -> np.ndarray:
    """Directions all over the sphere, and the one in which |Bᵀx| is least."""
    weakest = np.linalg.svd(head.B.numpy().T)[0][:, -1]
    turn = 2 * np.pi * (np.arange(n) + 0.5) / n
    if head.dim == 2:
        even = np.stack([np.sin(turn), np.cos(turn)], axis=1)
    elif head.dim == 3:
        polar, azimuth = (a.ravel() for a in np.meshgrid(np.pi * (np.arange(n // 2) + 0.5) / (n // 2), turn))
        even = _polar(polar, azimuth)
    else:
        even = np.random.default_rng(0).standard_normal((n, head.dim))
    return np.vstack([even / np.linalg.norm(even, axis=1, keepdims=True), weakest])


def near_equator(head: Head, beta: float, angles: int, offsets: int, reach: float = 2.0) -> tuple[np.ndarray, float]:
    """Directions up to 2 radii κ^{−½} from the equator, where the law jumps, and the least κ on the equator."""
    # On the circle, the first and the last coordinate.
    kept, angles = ([0, 2], 2) if head.dim == 2 else ([0, 1, 2], angles)
    azimuth = 2 * np.pi * np.arange(angles) / angles
    flat = np.full_like(azimuth, math.pi / 2)
    kappa = beta * sources(head, _polar(flat, azimuth)[:, kept])[1]
    steps = np.linspace(-reach, reach, offsets)
    polar = (flat[:, None] + steps / np.sqrt(kappa)[:, None]).ravel()
    return _polar(polar, np.repeat(azimuth, len(steps)))[:, kept], float(kappa.min())


def near_pole(head: Head, beta: float, offsets: int, reach: float = 6.0) -> tuple[np.ndarray, float]:
    """Directions of the circle up to 6 radii κ^{−½} from the atom at z = 1, and κ there."""
    kappa = beta * float(sources(head, np.array([[0.0, 1.0]]))[1][0])
    phi = np.linspace(-reach, reach, offsets) / math.sqrt(kappa)
    return np.stack([np.sin(phi), np.cos(phi)], axis=1), kappa


def supremum(head: Head, law: str, directions: np.ndarray, beta: float) -> float:
    """The largest |m_β(x) − û| over the directions û, by the package's scores and its softmax mean."""
    x, sizes = sources(head, directions)
    queries = beta * head.directions(torch.from_numpy(x))
    means = [
        attend(quadrature(law, u, beta * length), query[None], engine="dense")[0].numpy()
        for u, length, query in zip(directions, sizes, queries, strict=True)
    ]
    return float(np.linalg.norm(np.array(means) - directions, axis=1).max())


def jump_constant(low: float) -> float:
    """G(h)."""
    j = np.linspace(-4, 4, 80_001)
    return float(((1 - low) * norm.pdf(j) / (low * norm.cdf(j) + norm.sf(j))).max())


def atom_constant(d: int, kappa: float) -> float:
    """max_σ σρ/(1 + ρ)."""
    sigma = np.linspace(0, 12, 24_001)
    rho = ATOM * (kappa / (2 * math.pi)) ** ((d - 1) / 2) * np.exp(-(sigma**2) / 2)
    return float((sigma * rho / (1 + rho)).max())


def measured(head: Head, law: str, beta: float, angles: int, offsets: int) -> tuple[float, float, float]:
    """sup_x |m_β − û| over a grid, finer where the law is rough; its leading order, and κ where that is largest."""
    d, directions = head.dim, everywhere(head, angles)
    kappa = beta * sources(head, directions)[1]
    if law == "uniform":
        leading = 1 - ive(d / 2, kappa) / ive(d / 2 - 1, kappa)
    elif law == "smooth":
        slopes = SMOOTH_SLOPE**2 * (1 - directions[:, -1] ** 2)
        leading = np.sqrt(((d - 1) / 2) ** 2 + slopes) / kappa
    else:
        jump = law == "jump"
        rough, there = near_equator(head, beta, angles, offsets) if jump else near_pole(head, beta, 4 * offsets)
        directions, kappa = np.vstack([directions, rough]), np.array([there])
        leading = (jump_constant(JUMP_LOW) if jump else atom_constant(d, there)) / np.sqrt(kappa)
    best = int(leading.argmax())
    return supremum(head, law, directions, beta), float(leading[best]), float(kappa[best])


def _obstacle(head: Head) -> str | None:
    if head.theory().singular:
        return "B is singular: where Bᵀx vanishes û is undefined, and no β is large near there"
    return None


def own_heads() -> list[Head]:
    """Non-symmetric B in two and in three dimensions; V has no effect."""
    two = torch.tensor([[1.2, 0.3], [-0.2, 0.9]], dtype=torch.float64)
    three = torch.tensor([[1.1, 0.3, 0.0], [-0.2, 0.9, 0.2], [0.1, -0.1, 1.2]], dtype=torch.float64)
    return [Head.from_interaction(B, torch.eye(len(B), dtype=torch.float64)) for B in (two, three)]


@claim("laplace", "Laplace principle", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    betas: tuple[float, ...] = size(QUICK, full=FULL),
    angles: int = size(10, full=64),
    offsets: int = size(17, full=97),
) -> Finding:
    """For a law bounded below, |m_β[μ](x) − Bᵀx/|Bᵀx|| ≤ C √(log(β+1)/β) for all x [paper]. The true rate is 1/β for a
    smooth density, β^{−1/2} at a jump, and that of the bound itself for a law with an atom [derived].

    Measure the supremum of |m_β − û| against β for every law that the dimension allows.

    betas : of the claim's own heads. For a given head they are divided by the least |Bᵀx|
    angles : directions û around the sphere
    offsets : directions across a jump, and a quarter of those around an atom
    """
    plan = []
    for one in own_heads() if head is None else [head]:
        unit = 1.0 if head is None else float(one.theory().interaction_values[-1])
        laws = ["uniform", "smooth", "jump", "atom"][: {2: 4, 3: 3}.get(one.dim, 1)]
        plan += [(one, law, np.array(betas) / unit) for law in laws]
    low, high = min(b[0] for _, _, b in plan), max(b[-1] for _, _, b in plan)
    found = Finding(f"β = {low:.3g} to {high:.3g}, t = 0")
    picture = found.picture(
        "The softmax mean comes to its maximiser",
        "Largest distance over x between the softmax mean and û, for laws from smooth to rough. Dashed: the "
        "form of the paper's bound. Smooth laws fall like 1/β, a jump like β^(−1/2), an atom like the bound itself.",
        Panel("inverse temperature β", "sup over x of |m_β − û|", log_x=True, log_y=True),
    )
    slopes: dict[str, list[float]] = {}
    for one, law, at in told(plan, tell):
        slopes.setdefault(law, []).append(_try(found, picture, one, law, at, angles, offsets))
    grid = np.geomspace(low, high, 60)
    picture.add("√(log(β+1)/β)", grid, np.sqrt(np.log(grid + 1) / grid), "dashed")
    powers = ", ".join(f"β^{{{min(seen):.2f}}} ({law})" for law, seen in slopes.items())
    largest = max(row["gap over √(log(β+1)/β)"] for row in found.tables["laplace"])
    found.sentence = (
        f"sup |m_β − û| falls like {powers}; the constant of the bound √(log(β+1)/β) is at most {largest:.2f}"
    )
    return found


def _try(found: Finding, picture: Picture, head: Head, law: str, betas: np.ndarray, angles: int, offsets: int) -> float:
    """Measure one law and add its rows, its curve and its checks; returns its slope in β."""
    d, name = head.dim, f"{law}, d = {head.dim}"
    sup, leading, kappas = np.array([measured(head, law, beta, angles, offsets) for beta in betas]).T
    constants = sup / np.sqrt(np.log(betas + 1) / betas)
    for beta, gap, order, constant in zip(betas, sup, leading, constants, strict=True):
        gaps = {"sup of the gap": gap, "predicted leading order": order, "gap over √(log(β+1)/β)": constant}
        found.row("laplace", {"law": law, "d": d, "beta": beta, **gaps})
    picture.add(name, betas, sup)
    upper = betas >= np.sqrt(betas[0] * betas[-1]) * (1 - 1e-9)
    slope = line(np.log(betas[upper]), np.log(sup[upper]))
    # The leading order of the atom has a logarithm, so its own slope is the prediction.
    model = line(np.log(betas[upper]), np.log(leading[upper])).slope
    wanted = {"jump": -0.5, "atom": model}.get(law, -1.0)
    found.overlapping(f"{name}: slope in β", slope.interval, wanted - SLOPE_TOLERANCE, wanted + SLOPE_TOLERANCE)
    if law == "atom":
        title = f"{name}: slope of κ·gap² against log κ"
        found.slope(title, np.log(kappas[upper]), (kappas * sup**2)[upper], LOGARITHM, math.inf)
        most = float((sup / np.sqrt((d - 1) * np.log(kappas) / kappas)).max())
        found.within(f"{name}: gap over √((d−1) log κ/κ)", most, high=GROWTH)
    else:
        growth = float(constants[upper].max() / constants[~upper].max())
        found.within(f"{name}: growth of the bound's constant", growth, high=GROWTH)
    share = sup / leading
    if law == "uniform":
        found.within(f"{name}: relative error against 1 − A_d(κ)", float(np.abs(share - 1).max()), high=CLOSED_FORM)
    else:
        found.near(f"{name}: gap over its leading order at the largest β", share[-1], CONSTANT_TOLERANCE)
    return slope.slope
