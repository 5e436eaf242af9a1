"""Which texts of a page lie on top of each other, as a browser draws them."""

from __future__ import annotations

SLACK = 3
"""Boxes of text are higher than their letters, so neighbours may share this many pixels."""

OVERLAPS = r"""slack => {
    const shown = e => e.checkVisibility({visibilityProperty: true, opacityProperty: true});
    const faint = e => { const s = getComputedStyle(e);
        return parseFloat(s.fontSize) < 3 || s.fillOpacity === '0' || /, 0\)$/.test(s.fill); };
    // Headings of tables that are lists on a phone are for screen readers only.
    const clipped = e => { for (; e; e = e.parentElement)
        if (getComputedStyle(e).clipPath === 'inset(50%)') return true; return false; };
    const over = e => { for (; e; e = e.parentElement)
        if (['sticky', 'fixed'].includes(getComputedStyle(e).position)) return e; return null; };
    // The corners of a text as it is drawn, turned if it is turned.
    const quad = (e, box) => {
        if (!(e instanceof SVGTextElement)) return [[box.left, box.top], [box.right, box.top],
            [box.right, box.bottom], [box.left, box.bottom]];
        const b = e.getBBox(), m = e.getScreenCTM();
        return [[b.x, b.y], [b.x + b.width, b.y], [b.x + b.width, b.y + b.height], [b.x, b.y + b.height]]
            .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]); };
    // Two quadrilaterals overlap by the least length of their shadows' overlap along the sides of both.
    const shared = (p, q) => Math.min(...[p, q].flatMap(r => [0, 1].map(i => {
        const [x, y] = [r[i + 1][0] - r[i][0], r[i + 1][1] - r[i][1]], length = Math.hypot(x, y) || 1;
        const [u, v] = [p, q].map(s => s.map(c => (c[0] * x + c[1] * y) / length));
        return Math.min(Math.max(...u), Math.max(...v)) - Math.max(Math.min(...u), Math.min(...v)); })));
    const found = [], add = (e, box, words) => {
        if (box.width > 1 && box.height > 1)
            found.push({e, box, words: words.trim(), layer: over(e), corners: quad(e, box)}); };
    for (const e of document.querySelectorAll('.js-plotly-plot text')) {
        if (e.textContent.trim() && shown(e) && !faint(e) && !e.closest('.hoverlayer, .modebar'))
            add(e, e.getBoundingClientRect(), e.textContent);
    }
    for (const e of document.querySelectorAll('body *')) {
        if (e.closest('svg, .modebar-container, noscript, option, optgroup, [data-stale]')) continue;
        if (!shown(e) || clipped(e)) continue;
        if (e.matches('button, select, input, textarea')) add(e, e.getBoundingClientRect(), e.id + e.textContent);
        else if (!e.closest('button, select, textarea')) for (const node of e.childNodes) {
            if (node.nodeType !== 3 || !node.textContent.trim()) continue;
            const range = document.createRange();
            range.selectNodeContents(node);
            for (const box of range.getClientRects()) add(e, box, node.textContent);
        }
    }
    const wrong = [];
    found.sort((a, b) => a.box.top - b.box.top);
    found.forEach((a, i) => { for (const b of found.slice(i + 1)) {
        if (b.box.top > a.box.bottom - slack) break;
        // A bar that stays in the window lies on top of what is scrolled.
        if (a.layer !== b.layer || a.e.contains(b.e) || b.e.contains(a.e)) continue;
        if (shared(a.corners, b.corners) > slack) wrong.push([a.words.slice(0, 50), b.words.slice(0, 50)]);
    } });
    return wrong; }"""


def overlapping(page):
    """Pairs of texts, or of controls, whose boxes overlap: titles, ticks, legends, annotations, buttons, fields."""
    return page.evaluate(OVERLAPS, SLACK)


def move(page, moved, onto):
    """Shift the first element that a selector finds onto another."""
    page.evaluate(
        """([moved, onto]) => { const [a, b] = [moved, onto].map(s => document.querySelector(s));
            const [p, q] = [a, b].map(e => e.getBoundingClientRect());
            a.style.translate = `${q.left - p.left}px ${q.top - p.top}px`; }""",
        [moved, onto],
    )
