/* One time for all figures. The slider, the keys and the player change it; spheres and cursor follow without the server. */
(function () {
  "use strict";

  const lab = window.lab, { by, root, graph, clientside } = lab;
  const FRAME = 120;
  const TAILS = 400, TAIL = 6; // the largest number of tokens with a tail, and its length in frames
  Object.assign(lab, { player: null, painting: false });

  function indexAt(times, t) {
    let i = times.length - 1;
    while (i > 0 && times[i] > t + 1e-9 * times[times.length - 1]) i -= 1;
    return i;
  }
  const times = () => (lab.spheres[0] ? lab.spheres[0].times : [0]);
  const shownTime = () => times()[indexAt(times(), lab.time)];

  /* ---- figures from the server ---- */

  /* Store the frames of a sphere and show the frame of the current time. */
  lab.staged = function (figure, which) {
    const { times, id } = figure.layout.meta, frames = figure.frames, moving = frames[0].traces;
    const shown = indexAt(times, lab.time);
    delete figure.frames;
    frames[shown].data.forEach(({ x, y, z }, i) => Object.assign(figure.data[moving[i]], z ? { x, y, z } : { x, y }));
    stepBack(figure, by(`box-sphere-${which + 1}`).querySelector(".plot"));
    const drawn = figure.data.length, sphere = { times, frames, moving, shown, id, tails: moving.map((_, i) => drawn + i) };
    const tails = tailsAt(sphere, shown);
    moving.forEach((k, i) => {
      const { type, marker } = figure.data[k], color = typeof marker.color === "string" ? marker.color : "#8a9199";
      const look = { mode: "lines", line: { color, width: type === "scatter3d" ? 2 : 1.5 }, opacity: 0.5, hoverinfo: "skip" };
      figure.data.push({ type, name: "tail", showlegend: false, visible: lab.trails, ...look, ...tails[i] });
    });
    lab.spheres[which] = sphere;
    return figure;
  };

  /* A line for each of some tokens through its last places, with gaps between the lines. */
  function tailsAt(sphere, shown) {
    const first = Math.max(0, shown - TAIL), length = shown - first + 2;
    const groups = sphere.frames[shown].data, count = groups.reduce((sum, { x }) => sum + decoded(x).length, 0);
    const every = Math.max(1, Math.ceil(count / TAILS));
    return groups.map((group, i) => {
      const tail = {};
      for (const axis of ["x", "y", "z"]) {
        if (!group[axis]) continue;
        const places = sphere.frames.slice(first, shown + 1).map((frame) => decoded(frame.data[i][axis]));
        const lines = (tail[axis] = new Float32Array(Math.ceil(places[0].length / every) * length).fill(NaN));
        for (let token = 0, at = 0; token < places[0].length; token += every, at += length)
          places.forEach((place, k) => (lines[at + k] = place[token]));
      }
      return tail;
    });
  }

  lab.showTrails = function (on) {
    lab.trails = on;
    by("trails").setAttribute("aria-pressed", String(on));
    lab.spheres.forEach((sphere, which) => {
      const plot = graph(`sphere-${which + 1}`);
      if (!sphere || !plot || !plot.layout || (plot.layout.meta || {}).id !== sphere.id) return;
      window.Plotly.restyle(plot, { visible: on, ...columns(tailsAt(sphere, sphere.shown)) }, sphere.tails);
    });
  };

  /* A box that is higher than wide would cut off the sphere on both sides: move the camera away. */
  function stepBack(figure, box) {
    const eye = ((figure.layout.scene || {}).camera || {}).eye, legend = 100;
    const high = eye && box.clientWidth ? (box.clientHeight - legend) / box.clientWidth : 1;
    if (high > 1) for (const axis of ["x", "y", "z"]) eye[axis] *= 0.2 + 0.8 * high;
  }

  /* Move the cursor of a curve to the current time. */
  lab.pointed = function (figure) {
    for (const shape of figure.layout.shapes) {
      if (shape.name === "cursor") shape.x0 = shape.x1 = shownTime();
      if (shape.name === "later") Object.assign(shape, cover());
    }
    return figure;
  };

  /* The curve grows with the time: what comes later is covered, except in a figure that rests at its start. */
  const cover = () => ({ x0: shownTime(), x1: lab.until, visible: Boolean(lab.player) || lab.time > 0 });

  /* ---- moving ---- */

  const moveTo = (lab.moveTo = function (t, own) {
    lab.time = Math.max(0, Math.min(t, lab.until));
    if (!own) clientside.set_props("time", { value: lab.time });
    lab.showTime();
    lab.paint();
    clearTimeout(lab.noting);
    lab.noting = setTimeout(lab.address, 400);
  });

  const digits = (t) => t.toFixed(lab.until >= 100 ? 0 : lab.until >= 10 ? 1 : lab.until >= 1 ? 2 : 3);

  lab.showTime = function () {
    by("now").textContent = `t = ${digits(shownTime())} of ${Number(lab.until.toPrecision(4))}`;
    by("time").setAttribute("aria-valuetext", `t = ${digits(shownTime())}`);
    const words = lab.moments.map((run, i) => {
      const said = run.filter(([from]) => from <= shownTime()).pop() || run[0];
      return (lab.names.length ? `${lab.names[i]}: ` : "") + said[1];
    });
    const text = words.join("\n");
    by("moment").setAttribute("aria-live", lab.player ? "off" : "polite");
    if (by("moment").textContent !== text) by("moment").textContent = text;
  };

  /* Draw spheres and cursor at the current time. Calls during the drawing are merged into one. */
  lab.paint = async function () {
    lab.again = true;
    if (lab.painting) return;
    lab.painting = true;
    try {
      while (lab.again) {
        lab.again = false;
        for (const which of [0, 1]) await paintSphere(which);
        await paintCursor();
      }
    } finally {
      lab.painting = false;
    }
  };

  function decoded(column) {
    if (column.bdata === undefined) return column;
    const bytes = Uint8Array.from(atob(column.bdata), (c) => c.charCodeAt(0));
    return column.dtype === "f8" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  }

  /* The coordinates of several traces in the form that Plotly.restyle takes. */
  function columns(parts) {
    const found = {};
    for (const part of parts)
      for (const axis of ["x", "y", "z"]) if (part[axis]) (found[axis] = found[axis] || []).push(decoded(part[axis]));
    return found;
  }

  async function paintSphere(which) {
    const sphere = lab.spheres[which], plot = graph(`sphere-${which + 1}`);
    // Until the answer is drawn, the plot shows another run.
    if (!sphere || !plot || !plot.layout || (plot.layout.meta || {}).id !== sphere.id) return;
    const i = indexAt(sphere.times, lab.time);
    if (i === sphere.shown) return;
    sphere.shown = i;
    const parts = [...sphere.frames[i].data, ...(lab.trails ? tailsAt(sphere, i) : [])];
    await window.Plotly.restyle(plot, columns(parts), [...sphere.moving, ...(lab.trails ? sphere.tails : [])]);
  }

  async function paintCursor() {
    const plot = graph("curve"), shapes = (plot && plot.layout && plot.layout.shapes) || [];
    const k = shapes.findIndex((shape) => shape.name === "cursor"), t = shownTime();
    const covered = shapes.findIndex((shape) => shape.name === "later"), { x0, x1, visible } = cover();
    if (k < 0 || covered < 0 || (shapes[k].x0 === t && shapes[covered].visible === visible)) return;
    const change = { [`shapes[${k}].x0`]: t, [`shapes[${k}].x1`]: t, [`shapes[${covered}].visible`]: visible };
    await window.Plotly.relayout(plot, { ...change, [`shapes[${covered}].x0`]: x0, [`shapes[${covered}].x1`]: x1 });
  }

  /* Two spheres rotate together. */
  lab.turn = function (name, change) {
    const camera = change["scene.camera"], other = graph(name === "sphere-1" ? "sphere-2" : "sphere-1");
    if (!camera || !lab.spheres[1] || !other || !other.layout.scene) return;
    const seen = JSON.stringify((other.layout.scene.camera || {}).eye);
    if (seen !== JSON.stringify(camera.eye)) window.Plotly.relayout(other, { "scene.camera": camera });
  };

  /* ---- playing, and the keys ---- */

  function step(count) {
    const all = times();
    moveTo(all[Math.max(0, Math.min(all.length - 1, indexAt(all, lab.time) + count))]);
  }

  const pause = (lab.pause = function () {
    clearInterval(lab.player);
    lab.player = null;
    by("play").textContent = "▶ Play";
  });

  const toggle = (lab.toggle = function () {
    if (lab.player) return pause();
    if (indexAt(times(), lab.time) === times().length - 1 && !lab.polling) moveTo(0);
    by("play").textContent = "❚❚ Pause";
    lab.player = setInterval(() => {
      if (lab.painting) return; // a slow machine plays slowly instead of skipping frames
      if (lab.wanted !== null && by("box-sphere-1").dataset.stale) return; // the first frames of a new run are on their way
      if (indexAt(times(), lab.time) < times().length - 1) step(1);
      else if (lab.wanted !== null && !lab.polling) pause(); // an unfinished run, or a new one, will have more frames
    }, FRAME);
  });

  /* The mouse wheel scrolls the page also over a figure; Plotly would stop the event. */
  document.addEventListener("wheel", (event) => {
    if (event.target.closest(".js-plotly-plot")) event.stopPropagation();
  }, { capture: true, passive: true });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || root.dataset.view !== "laboratory") return;
    const element = event.target, range = element.matches("input[type=range]");
    if (element.closest("input:not([type=range]), textarea, select")) return;
    if (event.key === " ") {
      if (element.closest("button, a, summary")) return;
      toggle();
    } else if (range && element.id !== "time") return;
    else if (event.key === "ArrowRight" || (event.key === "ArrowUp" && range)) step(1);
    else if (event.key === "ArrowLeft" || (event.key === "ArrowDown" && range)) step(-1);
    else if (event.key === "Home") moveTo(0);
    else if (event.key === "End") moveTo(lab.until);
    else return;
    event.preventDefault();
  });
})();
