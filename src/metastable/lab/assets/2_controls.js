/* The fields: their contents, what depends on them, and when they are sent to the server. */
(function () {
  "use strict";

  const lab = window.lab, { by, root, clientside, send } = lab;
  const DEBOUNCE = 350, SLIDING = 150; // milliseconds without a change until the fields are sent
  Object.assign(lab, { serial: 0, consent: "", model: "", corpus: "", patience: 10000 });

  /* The user asked for the model in the field: the server may load this model. */
  lab.agree = () => (lab.consent = lab.fields.trained.trim().split(":").slice(0, -2).join(":"));

  /* The slider position p means β = 10^(7p/970 − 1), up to 10⁶ at p = 970; from p = 985 on, β = ∞. */
  const SLIDERS = {
    beta: {
      text: (p) => (p >= 985 ? "inf" : String(Number((10 ** (Math.min(p, 970) / (970 / 7) - 1)).toPrecision(3)))),
      place: (x) => (x === Infinity ? 1000 : x > 0 ? Math.min(970, Math.max(0, (970 * (Math.log10(x) + 1)) / 7)) : 0),
    },
    angle: { text: String, place: (x) => x },
  };
  const value = (text) => (/^\s*(inf|infinity|∞)\s*$/i.test(text) ? Infinity : Number(text));

  /* Put a text into a field and update what depends on it. */
  const put = (lab.put = function (name, text, slid) {
    lab.fields[name] = text;
    const element = by(`field-${name}`);
    if (element && element.tagName === "SELECT") element.value = text;
    else if (element) clientside.set_props(`field-${name}`, { value: text });
    mirror(name, slid);
  });

  function mirror(name, slid) {
    const text = lab.fields[name], place = SLIDERS[name] && SLIDERS[name].place(value(text));
    if (!slid && Number.isFinite(place)) clientside.set_props(`slide-${name}`, { value: Math.round(place) });
    if (name === "source") root.dataset.source = text;
    if (name === "twin") by("twin").setAttribute("aria-pressed", String(text === "yes"));
    if (name === "source" || name === "d") offered();
    if (name === "compare") {
      root.dataset.compare = text ? "yes" : "no";
      root.dataset.other = text === "beta" || text === "n" ? "yes" : "no";
      document.querySelector("label[for=field-other]").textContent = text === "n" ? "Second N" : "Second β";
      window.dispatchEvent(new Event("resize"));
    }
  }

  /* Changes of other fields that follow from a change of one field. */
  const FOLLOWS = {
    /* A new dimension removes the last eigenvalues, or appends 0.8 times the last one. */
    d() {
      const d = Number(lab.fields.d);
      if (!Number.isInteger(d) || d < 2 || d > 32) return;
      for (const name of ["interaction", "value"]) {
        const numbers = lab.fields[name].split(/[\s,;]+/).filter(Boolean).map(Number);
        if (numbers.length === d || !numbers.length || numbers.some((x) => !Number.isFinite(x))) continue;
        while (numbers.length < d) numbers.push(Number((0.8 * numbers[numbers.length - 1]).toPrecision(3)));
        put(name, numbers.slice(0, d).join(", "));
      }
    },
    compare() {
      const kind = lab.fields.compare, beta = value(lab.fields.beta), n = Number(lab.fields.n);
      if (kind === "beta") put("other", String(beta > 10 ? Number((Math.min(beta, 1e6) / 10).toPrecision(3)) : 100));
      else if (kind === "n") put("other", String(n > 400 ? Math.round(n / 4) : 1000));
      else put("other", "");
      if (kind === "weights") put("law", "uniform");
    },
    source() {
      const trained = lab.fields.source === "trained";
      if (trained && lab.fields.law !== "uniform") put("law", "tokens");
      if (!trained && lab.fields.law === "tokens") put("law", "uniform");
      if (lab.fields.source === "matrices" && !lab.fields.matrices.trim()) put("matrices", spelled());
    },
  };

  /* The matrices B = diag(b) and V = R diag(v) Rᵀ of the fields, as text to edit. */
  function spelled() {
    const numbers = (name) => lab.fields[name].split(/[\s,;]+/).filter(Boolean).map(Number);
    const b = numbers("interaction"), v = numbers("value"), angle = (Number(lab.fields.angle) * Math.PI) / 180;
    if (b.length !== v.length || b.length < 2 || ![...b, ...v, angle].every(Number.isFinite)) return "";
    const unit = (i, j) => (i === j ? 1 : 0), c = Math.cos(angle), s = Math.sin(angle);
    const R = (i, j) => (i > 1 || j > 1 ? unit(i, j) : i === j ? c : i ? s : -s);
    const rows = (entry) => b.map((_, i) => b.map((_, j) => Number(entry(i, j).toPrecision(6)) || 0).join(" ")).join("\n");
    return `${rows((i, j) => unit(i, j) * b[i])}\n\n${rows((i, j) => v.reduce((sum, x, k) => sum + R(i, k) * x * R(j, k), 0))}`;
  }

  /* Disable the initial laws that do not exist for this head. */
  function offered() {
    const trained = lab.fields.source === "trained", d = Number(lab.fields.d);
    const spectra = lab.fields.source === "spectra";
    const refused = { tokens: !trained, fibonacci: trained || (spectra && d !== 3), equally_spaced: trained || (spectra && d !== 2) };
    for (const law of ["graded", "von_mises_fisher", "mixture"]) refused[law] = trained;
    for (const option of by("field-law").options) option.disabled = Boolean(refused[option.value]);
  }

  document.addEventListener("input", (event) => {
    const id = event.target.id || "", text = event.target.value;
    if (id === "time") return lab.moveTo(Number(text), true);
    if (id.startsWith("slide-")) {
      put(id.slice(6), SLIDERS[id.slice(6)].text(Number(text)), true);
      return changed(SLIDING);
    }
    if (id === "example") return lab.showExample(event.target.selectedOptions[0]);
    if (!id.startsWith("field-")) return;
    const name = id.slice(6);
    lab.fields[name] = text;
    mirror(name);
    if (name === "column") { lab.askModel(); return changed(0); }
    if (name.startsWith("at-")) return lab.openHead(Number(by("field-at-layer").value), Number(by("field-at-head").value));
    if (name === "sample") { lab.askHead(); return changed(0); }
    if (name === "model" || name === "corpus") return;
    if (FOLLOWS[name]) FOLLOWS[name]();
    changed(name === "trained" ? null : event.target.tagName === "SELECT" ? 0 : DEBOUNCE);
    if (name === "trained") lab.showStatus({ status: "asking", message: "press Enter to load this head", fraction: 0 });
    lab.refresh();
  });

  /* The name of a model is read after Enter, or when the field loses the focus. */
  document.addEventListener("change", (event) => {
    if (event.target.id !== "field-trained") return;
    lab.agree();
    changed(0);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id === "field-model") lab.auditModel();
  });

  /* A field has changed: all figures are outdated until the server has answered. */
  const changed = (lab.changed = function (delay, again) {
    lab.serial += 1;
    lab.wanted = null;
    lab.poll(false);
    lab.refresh();
    clearTimeout(lab.timer);
    const told = { tab: lab.tab, serial: lab.serial, consent: lab.consent, again: Boolean(again), model: lab.model };
    clearInterval(lab.sending);
    if (delay === null) return lab.pause();
    const tell = () => send("fields", { ...lab.fields, ...told, sent: Date.now() });
    lab.timer = setTimeout(tell, delay);
    // Send the fields again until the server has answered: a request may be lost.
    lab.sending = setInterval(() => (lab.answered === told.serial ? clearInterval(lab.sending) : tell()), lab.patience);
  });

  /* Show each error message beside its field. */
  lab.showProblems = function (problems) {
    lab.problems = problems;
    const told = { ...problems, model: lab.modelProblem };
    for (const place of document.querySelectorAll(".problem")) {
      const name = place.id.slice(8), field = by(`field-${name}`), words = told[name] || "";
      if (place.textContent !== words) place.textContent = words;
      if (!field) continue;
      field.setAttribute("aria-describedby", place.id);
      if (words) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  };

  const CLICKS = {
    play: () => lab.toggle(),
    trails: () => lab.showTrails(!lab.trails),
    "tour-start": () => lab.goTo(0),
    "tour-back": () => lab.goTo(lab.tourStep - 1),
    "tour-next": () => lab.goTo(lab.tourStep + 1),
    "tour-leave": () => lab.goTo(-1),
    stop: () => {
      // Do not send a pending change either.
      if (lab.wanted === null) { changed(null); lab.showStatus({ status: "stopped", message: "stopped", fraction: 0 }); }
      return fetch(`tab/${lab.tab}/stop`, { method: "POST" });
    },
    run: () => { lab.agree(); changed(0, true); },
    theme: () => lab.changeTheme(lab.theme === "dark" ? "light" : "dark", true),
    "view-laboratory": () => { lab.setView("laboratory"); changed(0); },
    "view-audit": () => { lab.setView("audit"); changed(0); },
    "copy-link": () => lab.copyLink(),
    "download-report": () => lab.download("report"),
    "download-script": () => lab.download("script"),
    "download-data": () => lab.download("data"),
    "audit-run": () => lab.auditModel(),
    twin: () => lab.showTwin(lab.fields.twin === "no"),
    bundled: () => { put("model", by("bundled").dataset.model); lab.auditModel(); },
    follow: () => lab.follow(by("follow").dataset),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button || !CLICKS[button.id]) return;
    CLICKS[button.id]();
    // After a mouse click the space bar plays again; keyboard users keep the focus.
    if (event.detail > 0) button.blur();
  });

  /* The page is complete: put the state of the link into the fields and start. */
  clientside.lab.restore = function (restored) {
    if (!restored) return;
    for (const slider of document.querySelectorAll("input[type=range][id^=slide-]"))
      slider.setAttribute("aria-label", `${slider.id.slice(6)}, slider`);
    new MutationObserver(lab.refresh).observe(by("theory"), { childList: true, subtree: true });
    for (const [name, text] of Object.entries(restored.fields)) put(name, text);
    lab.time = restored.time;
    lab.opening = restored.time === 0 && restored.fields.view === "laboratory" && lab.moves();
    lab.until = Math.max(restored.time, 1e-9);
    lab.setView(restored.fields.view);
    if (restored.trusted) {
      lab.model = lab.fields.model;
      lab.corpus = lab.fields.corpus;
      lab.head = lab.fields.head ? lab.fields.head.split(",").map(Number) : null;
      lab.askModel(true);
    }
    lab.showProblems(restored.problems);
    if (!Object.keys(restored.problems).length) return changed(0);
    lab.showStatus({ status: "asking", message: restored.message, fraction: 0 });
    lab.refresh();
  };
})();
