"""The picture at the top of the README: tokens on a sphere that concentrate, rest and leave, with their distance curve.

    python examples/concentration.py docs/images/concentration.svg

Writes one SVG file that moves by itself, without scripts. It repeats every twelve seconds.
"""

import sys
from pathlib import Path

import torch

import metastable as ms

SHOWN, FRAMES, SECONDS = 90, 49, 12
HEAD = ms.Head.from_spectra(interaction=[1.5, 0.9, 0.6], value=[1.2, 0.7, 0.4], seed=4)
TINTS = {"concentration": "#DCEBF7", "plateau": "#DDF0E6", "terminal phase": "#FBE6D5"}
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")
X, Y, WIDTH, HEIGHT = 330, 60, 440, 190  # the panel of the curve
FONT = 'font-family="DejaVu Sans, Arial, sans-serif"'


def screen(frames: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Orthogonal projection of (T, N, 3) along `depth`, with the dominant direction of M horizontal: (T, N, 2)."""
    across = HEAD.theory().basis[:, 0]
    depth = depth - (depth @ across) * across
    depth = depth / depth.norm()
    up = torch.linalg.cross(depth, across)
    return torch.stack([frames @ across, -(frames @ up)], dim=2)


def main(path: Path) -> None:
    run = ms.simulate(HEAD, ms.fibonacci(800), beta=200.0, until=16.0, t_eval=FRAMES, tol=1e-4, progress=False)
    phases, distance = run.phases(), run.distance().values
    assert phases.concentrated is not None
    assert phases.terminal is not None
    places = screen(run.frames[:, :: len(run.cloud) // SHOWN], torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64))
    again = f'dur="{SECONDS}s" repeatCount="indefinite"'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" {FONT} font-size="13" fill="#222">']
    out += ["<title>Tokens concentrate, rest, and leave</title>", '<rect width="800" height="300" rx="8" fill="#fff"/>']
    out.append('<circle cx="155" cy="150" r="112" fill="#F6F6F6" stroke="#CCC"/>')
    for n in range(places.shape[1]):
        values = ";".join(f"{155 + 110 * x:.0f},{150 + 110 * y:.0f}" for x, y in places[:, n].tolist())
        colour = COLOURS[n * len(COLOURS) // places.shape[1]]
        moves = f'<animateTransform attributeName="transform" type="translate" values="{values}" {again}/>'
        out.append(f'<circle r="4" fill="{colour}" fill-opacity="0.8">{moves}</circle>')

    edges = [0.0, phases.concentrated, phases.terminal, run.horizon]
    for (name, tint), begin, end in zip(TINTS.items(), edges, edges[1:], strict=False):
        left, right = (X + WIDTH * t / run.horizon for t in (begin, end))
        out.append(f'<rect x="{left:.0f}" y="{Y}" width="{right - left:.0f}" height="{HEIGHT}" fill="{tint}"/>')
        out.append(f'<text x="{(left + right) / 2:.0f}" y="{Y - 8}" text-anchor="middle">{name}</text>')
    xs = [X + WIDTH * t / run.horizon for t in run.times.tolist()]
    ys = [Y + HEIGHT * (1 - d / 1.1) for d in distance.tolist()]
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    out.append(f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="2.5"/>')
    values = ";".join(points.split())
    dot = f'<animateTransform attributeName="transform" type="translate" values="{values}" {again}/>'
    out.append(f'<circle r="6" fill="#D55E00">{dot}</circle>')
    out.append(f'<text x="{X}" y="{Y + HEIGHT + 22}">time →</text>')
    out.append(f'<text x="{X + WIDTH}" y="{Y + HEIGHT + 22}" text-anchor="end">distance W₂ to the limit law</text>')
    out.append('<text x="155" y="290" text-anchor="middle">tokens under one attention head, β = 200</text></svg>')
    path.write_text("\n".join(out) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size // 1024} kB; {phases}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "concentration.svg"))
