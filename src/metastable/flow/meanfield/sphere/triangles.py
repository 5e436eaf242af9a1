"""A law on the sphere in ℝ³ as a triangulation that moves with the flow and carries mass.

The flow dx/dt = P_x V m_β[μ](x) moves the vertices and, in each triangle, a tracer that starts at the centre of its
mass. A triangle keeps its mass, as a logarithm. The distribution of the mass inside it (its law, see `remap`) follows
from the vertices and the tracer. The flow map Φ is taken as quadratic on a triangle, so that for a constant density

    ∫Φ = ¾ Φ(c) + ¼ · (Φ(v₁) + Φ(v₂) + Φ(v₃))/3,     c the centroid, v_i the corners,

so the transport has an error of higher order than interpolation from the corners. Triangles that the flow has
stretched are bisected, and triangles that it has shrunk are removed.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from metastable.errors import BadInput
from metastable.flow.meanfield.laws import LogDensity

from .geodesic import integrals, neighbours, sphere
from .mesh import Mesh, coarsen, refine
from .remap import make_patch

# Largest number of passes of one `coarsen`.
_PASSES = 8
# Least barycentric coordinate of a centre of mass (see `remap`).
_LEAST = 0.25
# Gauss–Legendre points and weights on [0, 1].
_GAUSS, _SHARES = 0.5 + 0.5 * np.sqrt(0.6) * np.array([-1, 0, 1]), np.array([5, 8, 5]) / 18


class Triangles:
    """A moving triangulation of the unit sphere of ℝ³ with mass; made by `Triangles.of`.

    Attributes
    ----------
    points : (n + m, 3)
        n vertices, then a tracer for each triangle. Both move with the flow. Assign a new array of the same shape.
    log_masses : (m,)
        The logarithm of the mass of each triangle.
    corners, across : (m, 3)
        The vertices of each triangle, counter-clockwise from outside; its neighbour opposite each of them.
    labels : (m,)
        Which side of the great circle the triangle started on, 1 or −1; 0 if none was given. Mass never changes sides.
    longest : float
        The longest edge that the last `refine` allowed.
    """

    points: np.ndarray
    log_masses: np.ndarray

    def __init__(self, vertices: np.ndarray, corners: np.ndarray, longest: float) -> None:
        m = len(corners)
        self.corners, self.across, self.longest = corners, neighbours(corners), longest
        self.log_masses, self.labels = np.full(m, -np.log(m)), np.zeros(m, dtype=np.int8)
        self._laws, self._lines = np.full((m, 3, 3), 1 / 3), np.zeros(m, dtype=np.int8)
        self._place(vertices)

    @classmethod
    def of(cls, log_density: LogDensity, longest: float, circle: np.ndarray | None = None) -> Triangles:
        """The whole sphere with the masses of a density.

        Parameters
        ----------
        log_density : callable, (n, 3) → (n,)
            The logarithm of a density with respect to area, up to a constant.
        longest : float
            No edge (chord) is longer.
        circle : (3,), optional
            The vector a. The great circle {⟨a, x⟩ = 0} is then made of edges, and each triangle is on one side of it,
            up to rounding (1e-16). For a smooth density the mass of each side has an error of at most 1e-10 of the
            total, and the mass of each triangle an error of at most 1e-3 of its own.

        Examples
        --------
        >>> import numpy as np
        >>> half = Triangles.of(lambda x: np.zeros(len(x)), 0.2, circle=np.array([1.0, 2.0, 2.0]))
        >>> bool(abs(np.exp(half.log_masses[half.labels == 1]).sum() - 0.5) < 1e-12)
        True
        """
        pole = np.array([0.0, 0.0, 1.0]) if circle is None else circle
        pole = pole / np.linalg.norm(pole)
        vertices, corners = sphere(longest, pole)
        cells, places = cls(vertices, corners, longest), vertices[corners]
        logs, middle = integrals(places, log_density)
        total = np.logaddexp.reduce(logs)
        if not np.isfinite(total):
            raise BadInput(f"the logarithm of the whole mass is {total}; log_density must be finite somewhere")
        cells.log_masses = logs - total
        cells._laws[:, 0] = _allowed(_barycentric(places, middle))
        if circle is not None:
            cells.labels = np.where(places.sum(axis=1) @ pole > 0, 1, -1).astype(np.int8)
        cells._place(vertices)
        return cells

    @property
    def vertices(self) -> np.ndarray:
        return self.points[: len(self.points) - len(self.corners)]

    @property
    def folded(self) -> int:
        """How many triangles are turned over."""
        a, b, c = (self.points[self.corners[:, i]] for i in range(3))
        return int((np.einsum("ij,ij->i", a, np.cross(b - a, c - a)) <= 0).sum())

    def copy(self) -> Triangles:
        return deepcopy(self)

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Three points per triangle, (3m, 3), scaled to the sphere, and their log-weights, (3m,).

        A law on a triangle has points half-way from its centroid to its corners, with the shares 2t_i − 1/3, which is
        exact for the product of its density with a linear function. A law on a segment has Gauss points.
        """
        laws, line = self._moved_laws(), self._lines > 0
        where = np.where(line[:, None, None], 0.0, 0.5 * np.eye(3) + 1 / 6)
        shares = 2 * laws[:, 0] - 1 / 3
        where[line] = np.einsum("gp,kpi->kgi", np.stack([1 - _GAUSS, _GAUSS], axis=1), laws[line, 1:])
        level = 6 * laws[line, 0, :1] - 2
        shares[line] = _SHARES * (level + 2 * (1 - level) * _GAUSS)
        points = (where @ self.points[self.corners]).reshape(-1, 3)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points, (self.log_masses[:, None] + np.log(shares)).ravel()

    def refine(self, longest: float, faintest: float = -np.inf) -> bool:
        """Bisect edges until no chord is longer than `longest`; whether there was one. `faintest` is ignored."""
        self.longest = longest
        mesh, patch = self._mesh(), make_patch()
        before, start = int(mesh.used[1]), 0
        while (start := refine(mesh, patch, longest, start)) >= 0:
            mesh = _with_room(mesh, max(1000, int(mesh.used[1]) // 2))
        if int(mesh.used[1]) == before:
            return False
        self._keep(mesh)
        return True

    def coarsen(self, shortest: float, faintest: float = -np.inf) -> bool:
        """Remove edges shorter than `shortest` and swap the long edges of flat triangles; whether there was one.

        An edge stays if its removal would fold the surface or make another edge longer than `longest`.
        """
        mesh, patch, passes = self._mesh(), make_patch(), 0
        while passes < _PASSES and coarsen(mesh, patch, shortest, self.longest):
            passes += 1
        if passes:
            self._keep(mesh)
        return passes > 0

    def _centres(self) -> np.ndarray:
        """Barycentric coordinates of the centres of mass when the tracers were placed there."""
        along = np.einsum("kp,kpi->ki", self._laws[:, 0, :2], self._laws[:, 1:])
        return np.where(self._lines[:, None] > 0, along, self._laws[:, 0])

    def _place(self, vertices: np.ndarray) -> None:
        """Put the tracers at the centres of mass."""
        tracers = np.einsum("ki,kid->kd", self._centres(), vertices[self.corners])
        self.points = np.concatenate([vertices, tracers / np.linalg.norm(tracers, axis=1, keepdims=True)])

    def _moved_laws(self) -> np.ndarray:
        """The laws after the flow, corrected by the tracers.

        A law with covariance C has its centre at Φ(c) + ½ C:Φ″, and interpolation from the corners gives
        Φ(c) + ½ Σ b_i w_i w_iᵀ:Φ″ with w_i = v_i − c. So the centre moves from the interpolated place by the fraction
        1 − tr C/Σ b_i |w_i|² of the way to the tracer: 3/4 for a constant density.
        """
        places, centres = self.points[self.corners], self._centres()
        line = self._lines > 0
        segment = self._laws[line, 2] - self._laws[line, 1]
        spread = (np.einsum("ki,kid->kd", segment, places[line]) ** 2).sum(axis=1) / 12
        away = places[line] - np.einsum("ki,kid->kd", centres[line], places[line])[:, None, :]
        part = np.full((len(line), 1), 0.75)
        reach = np.einsum("ki,kid,kid->k", centres[line], away, away)
        part[line, 0] = 1 - spread / np.maximum(reach, 1e-300)
        shift = np.clip(part * (_barycentric(places, self.points[-len(line) :]) - centres), -_LEAST, _LEAST)
        laws = self._laws.copy()
        laws[~line, 0] = _allowed(laws[~line, 0] + shift[~line])
        ends = np.maximum(laws[line, 1:] + shift[line][:, None, :], 0)
        laws[line, 1:] = ends / ends.sum(axis=2, keepdims=True)
        return laws

    def _mesh(self) -> Mesh:
        """The triangulation as the kernels take it, with the moved laws."""
        vertices = np.array(self.vertices, dtype=np.float64)
        anchor = np.empty(len(vertices), dtype=np.int64)
        anchor[self.corners] = np.arange(len(self.corners))[:, None]
        topology = (self.corners.copy(), self.across.copy())
        carried = (self.log_masses.copy(), self._moved_laws(), self._lines.copy(), self.labels.copy())
        return Mesh(vertices, anchor, *topology, *carried, np.array([len(vertices), len(self.corners)]))

    def _keep(self, mesh: Mesh) -> None:
        """Take over the triangulation of the kernels, without dead vertices and triangles."""
        vertices, triangles = (int(n) for n in mesh.used)
        alive, here = mesh.corners[:triangles, 0] >= 0, mesh.anchor[:vertices] >= 0
        new_vertex, new_triangle = np.cumsum(here) - 1, np.cumsum(alive) - 1
        self.corners = new_vertex[mesh.corners[:triangles][alive]]
        self.across = new_triangle[mesh.across[:triangles][alive]]
        self.log_masses, self.labels = mesh.masses[:triangles][alive], mesh.labels[:triangles][alive]
        self._laws, self._lines = mesh.laws[:triangles][alive], mesh.lines[:triangles][alive]
        self._place(mesh.points[:vertices][here])


def _barycentric(places: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Coordinates (k, 3) of the rays through `points` (k, 3) in the triangles `places` (k, 3, 3).

    By Cramer's rule; a triangle without area gives its centroid.
    """
    a, b, c = (places[:, i] for i in range(3))
    w = np.stack([np.einsum("kd,kd->k", points, np.cross(*pair)) for pair in ((b, c), (c, a), (a, b))], axis=1)
    total = w.sum(axis=1, keepdims=True)
    return np.where(total > 0, w / np.where(total > 0, total, 1), 1 / 3)


def _allowed(tilts: np.ndarray) -> np.ndarray:
    """Tilts (k, 3) moved towards the centroid until none is below 1/4, so that the density is not negative."""
    lowest = tilts.min(axis=1, keepdims=True)
    return 1 / 3 + (tilts - 1 / 3) * np.minimum(1, (1 / 3 - _LEAST) / np.maximum(1 / 3 - lowest, 1e-300))


def _with_room(mesh: Mesh, room: int) -> Mesh:
    """The same mesh in buffers with room for so many more triangles and vertices."""
    grown = [np.concatenate([a, np.zeros((room, *a.shape[1:]), dtype=a.dtype)]) for a in mesh[:-1]]
    return Mesh._make([*grown, mesh.used])
