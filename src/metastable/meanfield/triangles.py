"""A law on the sphere in ℝ³ as a triangulation that moves with the flow and carries mass.

The vertices are moved by whoever integrates dx/dt = P_x V m_β[μ](x). A triangle keeps the mass that it has, as a
logarithm, and keeps it in the same place relative to its corners: that is the continuity equation, up to the error of
a linear interpolation of the flow inside a triangle. Triangles that the flow has stretched are bisected, those that it
has shrunk are taken out; `remap` says how their mass is passed on.
"""

from __future__ import annotations

import numpy as np

from metastable.arrays import positive
from metastable.errors import BadInput

from .geodesic import LogDensity, integrals, neighbours, sphere
from .mending import coarsen
from .mesh import Mesh, refine
from .remap import make_patch

_PASSES = 8
# The rule of Gauss on [0, 1].
_GAUSS, _SHARES = 0.5 + 0.5 * np.sqrt(0.6) * np.array([-1, 0, 1]), np.array([5, 8, 5]) / 18


class Triangles:
    """A moving triangulation of the unit sphere of ℝ³ with mass; made by `Triangles.of`.

    Attributes
    ----------
    points : (n, 3)
        The vertices. Move them by assigning a new array of the same shape.
    log_masses : (m,)
        The logarithm of the mass of each triangle; −inf where there is none.
    corners, across : (m, 3)
        The vertices of each triangle, counter-clockwise from outside; its neighbour opposite each of them.
    laws, lines : (m, 3, 3), (m,)
        Where the mass is inside its triangle: see `remap`.
    labels : (m,)
        Which side of the great circle the triangle started on, 1 or −1; 0 if none was given. Mass never changes sides.
    """

    points: np.ndarray
    log_masses: np.ndarray

    def __init__(self, points: np.ndarray, corners: np.ndarray, longest: float) -> None:
        m = len(corners)
        self.points, self.corners, self.across = points, corners, neighbours(corners)
        self.log_masses, self.labels = np.full(m, -np.log(m)), np.zeros(m, dtype=np.int8)
        self.laws, self.lines = np.full((m, 3, 3), 1 / 3), np.zeros(m, dtype=np.int8)
        self.longest = longest

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
            a, to have the great circle {⟨a, x⟩ = 0} along edges. Each triangle is then on one side of it, to rounding
            (1e-16), and the mass of each side is as exact as those of the triangles: 1e-10 of all mass or better for a
            smooth density, and for each triangle a share of 1e-4 of its own mass.

        Examples
        --------
        >>> import numpy as np
        >>> half = Triangles.of(lambda x: np.zeros(len(x)), 0.2, circle=np.array([1.0, 2.0, 2.0]))
        >>> bool(abs(np.exp(half.log_masses[half.labels == 1]).sum() - 0.5) < 1e-12)
        True
        """
        longest = positive(longest, "longest")
        pole = np.array([0.0, 0.0, 1.0]) if circle is None else np.asarray(circle, dtype=np.float64)
        if pole.shape != (3,) or not np.isfinite(pole).all() or not pole.any():
            raise BadInput(f"circle is {circle!r}; it must be a vector of 3 numbers, not all 0")
        pole = pole / np.linalg.norm(pole)
        cells = cls(*sphere(longest, pole), longest)
        places = cells.points[cells.corners]
        logs, middle = integrals(places, log_density)
        total = np.logaddexp.reduce(logs)
        if not np.isfinite(total):
            raise BadInput(f"the logarithm of the whole mass is {total}; log_density must be finite somewhere")
        cells.log_masses = logs - total
        heights = np.einsum("kid,kd->ki", np.linalg.inv(places.transpose(0, 2, 1)), middle)
        tilts = heights / heights.sum(axis=1, keepdims=True) - 1 / 3
        cells.laws[:, 0] = 1 / 3 + tilts * np.minimum(1, (1 / 12) / np.maximum(-tilts.min(axis=1), 1e-300))[:, None]
        if circle is not None:
            cells.labels = np.where(places.sum(axis=1) @ pole > 0, 1, -1).astype(np.int8)
        return cells

    def copy(self) -> Triangles:
        new = object.__new__(Triangles)
        new.__dict__ = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self.__dict__.items()}
        return new

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Three points a triangle, (3m, 3), scaled to the sphere, and their log-weights, (3m,).

        For a law on a triangle (see `remap`) half-way from its centroid to its corners, with the shares 2t_i − 1/3: exact
        for the product of its density with a linear function. For a law on a segment, the points of Gauss.
        """
        tilts, line = self.laws[:, 0], self.lines > 0
        where = np.where(line[:, None, None], 0.0, 0.5 * np.eye(3) + 1 / 6)
        shares = 2 * tilts - 1 / 3
        along = self.laws[line, 1:]
        where[line] = np.einsum("gp,kpi->kgi", np.stack([1 - _GAUSS, _GAUSS], axis=1), along)
        level = 6 * tilts[line, :1] - 2
        shares[line] = _SHARES * (level + 2 * (1 - level) * _GAUSS)
        points = (where @ self.points[self.corners]).reshape(-1, 3)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points, (self.log_masses[:, None] + np.log(shares)).ravel()

    @property
    def folded(self) -> int:
        """How many triangles are turned over: 0 unless a step moved the vertices too far."""
        a, b, c = (self.points[self.corners[:, i]] for i in range(3))
        return int((np.einsum("ij,ij->i", a, np.cross(b - a, c - a)) <= 0).sum())

    def refine(self, longest: float) -> bool:
        """Bisect edges until none (as a chord) is longer than `longest`. Whether any was."""
        self.longest = positive(longest, "longest")
        vertices, triangles, start, patch = len(self.points), len(self.corners), 0, make_patch()
        mesh = self._mesh(0)
        start = refine(mesh, patch, self.longest, 0)
        while start >= 0:
            self._keep(mesh)
            mesh = self._mesh(max(1000, len(self.corners) // 2))
            start = refine(mesh, patch, self.longest, start)
        if int(mesh.used[1]) == triangles and int(mesh.used[0]) == vertices:
            return False
        self._keep(mesh)
        return True

    def coarsen(self, shortest: float) -> bool:
        """Take out edges shorter than `shortest`, and swap those under which triangles are flat. Whether any was.

        An edge stays if taking it out would fold the surface, or make another longer than in the last `refine`.
        """
        shortest = positive(shortest, "shortest")
        mesh, patch, done = self._mesh(0), make_patch(), 0
        for _ in range(_PASSES):
            now = coarsen(mesh, patch, shortest, self.longest)
            done += now
            if not now:
                break
        if done:
            self._keep(mesh)
        return done > 0

    def _mesh(self, room: int) -> Mesh:
        """The triangulation in buffers with room for more triangles, and half as many vertices."""

        def grown(a: np.ndarray, by: int) -> np.ndarray:
            out = np.zeros((len(a) + by, *a.shape[1:]), dtype=a.dtype)
            out[: len(a)] = a
            return out

        anchor = np.empty(len(self.points), dtype=np.int64)
        anchor[self.corners] = np.arange(len(self.corners))[:, None]
        per_cell = (self.corners, self.across, self.log_masses, self.laws, self.lines, self.labels)
        used = np.array([len(self.points), len(self.corners)])
        points = np.ascontiguousarray(self.points, dtype=np.float64)
        return Mesh(grown(points, room), grown(anchor, room), *(grown(a, room) for a in per_cell), used)

    def _keep(self, mesh: Mesh) -> None:
        """Take the triangulation back, without what is dead."""
        vertices, triangles = (int(n) for n in mesh.used)
        alive, here = mesh.corners[:triangles, 0] >= 0, mesh.anchor[:vertices] >= 0
        new_vertex, new_triangle = np.cumsum(here) - 1, np.cumsum(alive) - 1
        self.points = mesh.points[:vertices][here]
        self.corners = new_vertex[mesh.corners[:triangles][alive]]
        self.across = new_triangle[mesh.across[:triangles][alive]]
        self.log_masses, self.labels = mesh.masses[:triangles][alive], mesh.labels[:triangles][alive]
        self.laws, self.lines = mesh.laws[:triangles][alive], mesh.lines[:triangles][alive]
