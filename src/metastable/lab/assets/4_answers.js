/* The answers of the server: errors of fields, the progress and the figures of a run, and of an audit. */
(function () {
  "use strict";

  const lab = window.lab, { by, root, graph, clientside, send, ENDED } = lab;
  const UNNAMED = "The phases are named when the run is computed.";
  const FORGOTTEN = 8000, REDRAW = 900, HEAD_LOST = 3000;
  Object.assign(lab, { job: null, polling: false, busy: 0, seen: -1, drawn: 0, cost: 0, auditing: false, auditBusy: 0 });

  /* ---- asking ---- */

  const clock = () => clientside.set_props("clock", { disabled: !lab.polling && !lab.auditing });

  const poll = (lab.poll = function (on) {
    lab.polling = on;
    lab.busy = 0;
    clock();
  });

  /* Ask for progress. A request without an answer is repeated after FORGOTTEN milliseconds. */
  clientside.lab.beat = function () {
    const now = Date.now();
    if (lab.polling && now - lab.busy > FORGOTTEN) {
      lab.busy = now;
      // The figures of an unfinished run are drawn at most every REDRAW milliseconds, and less often if they are slow.
      const due = now - lab.drawn > Math.max(REDRAW, 4 * lab.cost);
      const asked = { tab: lab.tab, key: lab.wanted, query: lab.query, seen: lab.seen, due, now };
      send("tick", { ...asked, theme: lab.theme, scale: lab.scale });
    }
    if (lab.auditing && now - lab.auditBusy > FORGOTTEN) lab.askModel();
  };

  /* Ask for all figures again, in another theme or size. */
  lab.redraw = function () {
    lab.seen = -1;
    lab.drawn = 0;
    poll(lab.wanted !== null);
    if (root.dataset.audited !== "yes") return;
    lab.askModel();
    if (lab.head) lab.askHead();
  };

  /* ---- the laboratory ---- */

  lab.showStatus = function (answer) {
    lab.status = answer.status;
    const busy = ["waiting", "running", "measuring"].includes(answer.status);
    by("status").setAttribute("aria-live", busy ? "off" : "polite");
    by("status").textContent = answer.message;
    by("status").classList.toggle("wrong", answer.status === "failed" || answer.status === "wrong");
    by("progress").value = answer.fraction;
    by("progress").hidden = !busy;
    by("stop").disabled = !busy;
    by("run").hidden = !["failed", "stopped", "asking"].includes(answer.status);
    for (const kind of ["report", "data"]) by(`download-${kind}`).disabled = answer.status !== "done";
    by("download-script").disabled = lab.wanted === null;
  };

  /* The server has read the fields: a field is wrong, or the run was started. */
  clientside.lab.accept = function (job) {
    if (!job || job.serial !== lab.serial) return;
    lab.answered = job.serial;
    lab.showProblems(job.problems);
    lab.query = job.query;
    if (by("example")) {
      const found = Array.from(by("example").options).some(({ value }) => value === `?${job.query}`);
      by("example").value = found ? `?${job.query}` : "own";
    }
    if (job.key === null) {
      lab.pause();
      lab.showStatus({ status: job.status, message: job.message, fraction: 0 });
    } else {
      if (lab.job !== job.key) {
        Object.assign(lab, { seen: -1, drawn: 0, moments: [] });
        say(UNNAMED);
        if (lab.player) lab.time = 0; // a new run plays from its start
      } else if (lab.opening) {
        lab.opening = false;
        if (!lab.player) lab.toggle();
      }
      lab.job = lab.wanted = job.key;
      lab.until = job.until;
      clientside.set_props("time", { max: job.until, value: Math.min(lab.time, job.until) });
      lab.moveTo(lab.time);
      lab.showStatus({ status: "running", message: "starting …", fraction: 0 });
      poll(true);
    }
    lab.address();
    lab.refresh();
  };

  /* The progress of the run, with figures if there are new ones. */
  clientside.lab.answer = function (answer) {
    const nothing = clientside.no_update, none = [nothing, nothing, nothing];
    if (!answer || answer.key !== lab.wanted) return none;
    lab.busy = 0;
    if (answer.status === "unknown") { lab.changed(0); return none; } // the server forgot the run, for example while the computer slept: start it again
    // The theme or size has changed since the request: ask again.
    if (answer.theme && (answer.theme !== lab.theme || answer.scale !== lab.scale)) { lab.redraw(); return none; }
    lab.seen = answer.version;
    lab.showStatus(answer);
    if (ENDED.includes(answer.status)) poll(false);
    if (answer.status === "failed" || answer.status === "stopped") lab.pause();
    if (answer.spheres.length) lab.drawn = Date.now(), lab.cost = lab.drawn - answer.asked;
    forget(answer.spheres.map((_, i) => `sphere-${i + 1}`).concat(answer.curve ? ["curve"] : []));
    const figures = answer.spheres.map((figure, i) => lab.staged(figure, i));
    figures.forEach((figure, i) => entitle(`sphere-${i + 1}`, figure, answer.names[i]));
    if (figures.length === 1) lab.spheres[1] = null;
    if (answer.spheres.length) {
      Object.assign(lab, { moments: answer.moments, names: answer.names });
      say(answer.moments.length ? answer.gist : UNNAMED);
      if (lab.opening && !lab.player) lab.toggle();
      lab.opening = false;
    }
    if (answer.curve) entitle("curve", lab.pointed(answer.curve));
    lab.showTime();
    setTimeout(lab.refresh, 0);
    return [figures[0] || nothing, figures[1] || nothing, answer.curve || nothing];
  };

  /* Plotly keeps the space of a legend also for a new figure that has none. The new figure reserves its own space. */
  function forget(names) {
    for (const name of names) {
      const drawn = (graph(name) || {})._fullLayout;
      if (drawn && drawn._reservedMargin) drawn._reservedMargin = {};
    }
  }

  /* What the run did, in one sentence; of two runs the sentences about the time shown are enough. */
  function say(gist) {
    by("gist").textContent = gist;
  }

  function entitle(name, figure, title) {
    by(`note-${name}`).textContent = figure.layout.meta.note || "";
    const words = title || figure.layout.meta.title;
    by(`title-${name}`).textContent = title ? words : words[0].toUpperCase() + words.slice(1);
    const plot = by(`box-${name}`).querySelector(".plot");
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", figure.layout.meta.caption);
  }

  /* A graph has its first figure: listen to its events. */
  clientside.lab.watch = function () {
    for (const name of ["sphere-1", "sphere-2", "curve", "heat-map"]) {
      const plot = graph(name);
      if (!plot || !plot.on || plot.dataset.watched) continue;
      plot.dataset.watched = "yes";
      plot.on("plotly_afterplot", () => { lab.refresh(); lab.paint(); });
      if (name.startsWith("sphere")) plot.on("plotly_relayout", (change) => lab.turn(name, change));
      if (name === "curve") plot.on("plotly_click", (event) => lab.moveTo(event.points[0].x));
      // The second panel is the random twin, whose heads are not opened.
      if (name === "heat-map") plot.on("plotly_click", ({ points: [at] }) => at.curveNumber || lab.openHead(at.y, at.x));
    }
    lab.refresh();
  };

  /* ---- the audit ---- */

  lab.auditModel = function () {
    lab.model = lab.fields.model.trim();
    lab.corpus = lab.fields.corpus;
    lab.head = null;
    lab.fields.head = "";
    root.dataset.head = root.dataset.audited = "no";
    by("audit-headline").textContent = by("audit-words").textContent = "";
    lab.put("sample", "0");
    lab.askModel(true);
    lab.changed(0);
  };

  const looks = () => ({ tab: lab.tab, model: lab.model, theme: lab.theme, scale: lab.scale });

  lab.askModel = function (start) {
    lab.auditBusy = Date.now();
    const { column, twin } = lab.fields, asked = { column, twin, corpus: lab.corpus, start: Boolean(start) };
    send("model-wanted", { ...looks(), ...asked, now: lab.auditBusy });
    lab.auditing = true;
    clock();
  };

  lab.showTwin = function (on) {
    lab.put("twin", on ? "yes" : "no");
    lab.askModel();
    lab.changed(0);
  };

  clientside.lab.model = function (answer) {
    const nothing = clientside.no_update, none = [nothing, nothing, nothing];
    if (!answer || answer.model !== lab.model) return none;
    lab.auditBusy = 0;
    // Audits of other tabs may have replaced it: start it again.
    if (answer.status === "unknown" && root.dataset.audited === "yes") { lab.askModel(true); return none; }
    if (answer.column && answer.column !== lab.fields.column && answer.columns.includes(lab.fields.column)) {
      lab.askModel();
      return none;
    }
    lab.auditing = ["waiting", "running"].includes(answer.status);
    clock();
    by("audit-status").textContent = lab.auditing ? answer.message : "";
    by("audit-progress").hidden = !lab.auditing;
    by("audit-progress").value = answer.fraction;
    lab.modelProblem = answer.status === "failed" ? answer.message : "";
    lab.showProblems(lab.problems);
    if (answer.status !== "done") return none;
    by("audit-headline").textContent = answer.headline;
    by("audit-words").textContent = answer.words;
    for (const option of by("field-column").options) option.disabled = !answer.columns.includes(option.value);
    by("field-sample").replaceChildren(...answer.samples.map((text, i) => new Option(text, String(i))));
    by("field-sample").value = lab.fields.sample;
    root.dataset.measured = answer.depth ? "yes" : "no";
    choices("field-at-layer", answer.layers);
    choices("field-at-head", answer.heads);
    lab.put("column", answer.column);
    const first = root.dataset.audited !== "yes";
    root.dataset.audited = "yes";
    by("box-heat-map").querySelector(".plot").style.minHeight = `${answer.height}px`;
    entitle("heat-map", answer.figure, answer.title);
    if (lab.head && (lab.head[0] >= answer.layers || lab.head[1] >= answer.heads)) {
      lab.tell(`this model has no head ${lab.head[1]} in layer ${lab.head[0]}`);
      lab.head = null;
      lab.fields.head = "";
    }
    else if (!lab.head && first) {
      lab.head = answer.interesting;
      if (root.dataset.view === "audit") lab.changed(0);
    }
    answer.figure.layout.shapes = frame();
    if (lab.head && root.dataset.head === "no") showHead();
    if (answer.depth) entitle("depth", answer.depth);
    return [answer.figure, answer.caption, answer.depth || nothing];
  };

  function choices(id, count) {
    if (by(id).options.length !== count)
      by(id).replaceChildren(...Array.from({ length: count }, (_, i) => new Option(String(i), String(i))));
  }

  lab.openHead = function (layer, head) {
    lab.head = [layer, head];
    window.Plotly.relayout(graph("heat-map"), { shapes: frame() });
    showHead();
    lab.changed(0);
  };

  function showHead() {
    const [layer, head] = lab.head;
    lab.fields.head = `${layer},${head}`;
    by("field-at-layer").value = layer;
    by("field-at-head").value = head;
    // Hide the head until its own text arrives.
    root.dataset.head = "no";
    lab.askHead();
  }

  new MutationObserver(() => {
    const title = by("head-title");
    if (title && lab.head && title.textContent === `Layer ${lab.head[0]}, head ${lab.head[1]}`) root.dataset.head = "yes";
  }).observe(document.documentElement, { childList: true, subtree: true });

  lab.askHead = function () {
    const [layer, head] = lab.head, sample = Number(lab.fields.sample);
    send("head-wanted", { ...looks(), layer, head, sample, sent: Date.now() });
    clearTimeout(lab.heading);
    lab.heading = setTimeout(() => {
      if (!lab.head || root.dataset.head === "yes") return;
      lab.askModel(true);
      lab.askHead();
    }, HEAD_LOST);
  };

  /* A frame around the selected head in the heat map. */
  function frame() {
    if (!lab.head) return [];
    const [layer, head] = lab.head, line = { color: lab.theme === "dark" ? "#ffffff" : "#000000", width: 3 };
    return [{ type: "rect", x0: head - 0.5, x1: head + 0.5, y0: layer - 0.5, y1: layer + 0.5, line }];
  }

  /* Start the simulation of a head of the audit. */
  lab.follow = function (facts) {
    lab.put("source", "trained");
    for (const name of ["trained", "beta", "until", "n", "law", "compare", "other"]) lab.put(name, facts[name] || "");
    lab.agree();
    lab.time = 0;
    lab.opening = lab.moves();
    lab.setView("laboratory");
    window.scrollTo(0, 0);
    lab.changed(0);
  };
})();
