/* The controls: what is in them, what depends on it, and when the server hears of it. */
(function () {
  "use strict";

  const lab = window.lab, { by, root, clientside, send } = lab;
  const DEBOUNCE = 350;
  Object.assign(lab, { serial: 0, consent: "", model: "", patience: 10000 });

  /* Somebody here has asked for the model in the field: it, and no other, may be read. */
  lab.agree = () => (lab.consent = lab.fields.trained.trim().split(":").slice(0, -2).join(":"));

  /* β is 10^(7p/970 − 1) up to 10⁶ at p = 970; the last stretch of the slider is ∞. */
  const SLIDERS = {
    beta: {
      text: (p) => (p >= 985 ? "inf" : String(Number((10 ** (Math.min(p, 970) / (970 / 7) - 1)).toPrecision(3)))),
      place: (x) => (x === Infinity ? 1000 : x > 0 ? Math.min(970, Math.max(0, (970 * (Math.log10(x) + 1)) / 7)) : 0),
    },
    angle: { text: String, place: (x) => x },
  };
  const value = (text) => (/^\s*(inf|infinity|∞)\s*$/i.test(text) ? Infinity : Number(text));

  /* Put a text into a field, and show what depends on it. */
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
    if (name === "source" || name === "d") offered();
    if (name === "compare") {
      root.dataset.compare = text ? "yes" : "no";
      root.dataset.other = text === "beta" || text === "n" ? "yes" : "no";
      document.querySelector("label[for=field-other]").textContent = text === "n" ? "second N" : "second β";
      window.dispatchEvent(new Event("resize"));
    }
  }

  /* What follows from a choice, so that it can be seen at once what it does. */
  const FOLLOWS = {
    /* A new dimension keeps the eigenvalues that there are: it drops the last, or goes on with 0.8 times the last. */
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

  /* B = diag(b) and V = R diag(v) Rᵀ as they stand in the fields, written out: something to change. */
  function spelled() {
    const numbers = (name) => lab.fields[name].split(/[\s,;]+/).filter(Boolean).map(Number);
    const b = numbers("interaction"), v = numbers("value"), angle = (Number(lab.fields.angle) * Math.PI) / 180;
    if (b.length !== v.length || b.length < 2 || ![...b, ...v, angle].every(Number.isFinite)) return "";
    const unit = (i, j) => (i === j ? 1 : 0), c = Math.cos(angle), s = Math.sin(angle);
    const R = (i, j) => (i > 1 || j > 1 ? unit(i, j) : i === j ? c : i ? s : -s);
    const rows = (entry) => b.map((_, i) => b.map((_, j) => Number(entry(i, j).toPrecision(6)) || 0).join(" ")).join("\n");
    return `${rows((i, j) => unit(i, j) * b[i])}\n\n${rows((i, j) => v.reduce((sum, x, k) => sum + R(i, k) * x * R(j, k), 0))}`;
  }

  /* Laws that the head at hand cannot have cannot be chosen. */
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
      return changed(DEBOUNCE);
    }
    if (!id.startsWith("field-")) return;
    const name = id.slice(6);
    lab.fields[name] = text;
    mirror(name);
    if (name === "column") { lab.askModel(); return changed(0); }
    if (name.startsWith("at-")) return lab.openHead(Number(by("field-at-layer").value), Number(by("field-at-head").value));
    if (name === "model") return;
    if (FOLLOWS[name]) FOLLOWS[name]();
    changed(name === "trained" ? null : event.target.tagName === "SELECT" ? 0 : DEBOUNCE);
    if (name === "trained") lab.showStatus({ status: "asking", message: "Enter follows this head", fraction: 0 });
    lab.refresh();
  });

  /* A model's name is used when it is complete: after Enter, or when the field is left. */
  document.addEventListener("change", (event) => {
    if (event.target.id !== "field-trained") return;
    lab.agree();
    changed(0);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id === "field-model") lab.auditModel();
  });

  /* Controls have changed: nothing that is shown answers them any more, until the server says so. */
  const changed = (lab.changed = function (delay, again) {
    lab.serial += 1;
    lab.wanted = null;
    lab.poll(false);
    lab.refresh();
    clearTimeout(lab.timer);
    const told = { tab: lab.tab, serial: lab.serial, consent: lab.consent, again: Boolean(again), model: lab.model };
    clearInterval(lab.sending);
    if (delay === null) return;
    const tell = () => send("fields", { ...lab.fields, ...told, sent: Date.now() });
    lab.timer = setTimeout(tell, delay);
    // What was lost on the way is sent again, until the server has answered it.
    lab.sending = setInterval(() => (lab.answered === told.serial ? clearInterval(lab.sending) : tell()), lab.patience);
  });

  /* What is wrong, beside the field that it is wrong with. */
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
    stop: () => {
      // Also what has not been sent yet.
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
    bundled: () => { put("model", by("bundled").dataset.model); lab.auditModel(); },
    follow: () => lab.follow(by("follow").dataset),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button || !CLICKS[button.id]) return;
    CLICKS[button.id]();
    // After a click with the mouse the space bar belongs to the player again; the keyboard keeps its place.
    if (event.detail > 0) button.blur();
  });

  /* The page is there: put the state of the link into the controls and go. */
  clientside.lab.restore = function (restored) {
    if (!restored) return;
    for (const slider of document.querySelectorAll("input[type=range][id^=slide-]"))
      slider.setAttribute("aria-label", `${slider.id.slice(6)}, slider`);
    new MutationObserver(lab.refresh).observe(by("theory"), { childList: true, subtree: true });
    for (const [name, text] of Object.entries(restored.fields)) put(name, text);
    lab.time = restored.time;
    lab.until = Math.max(restored.time, 1e-9);
    lab.setView(restored.fields.view);
    if (restored.trusted) {
      lab.model = lab.fields.model;
      lab.head = lab.fields.head ? lab.fields.head.split(",").map(Number) : null;
      lab.askModel(true);
    }
    lab.showProblems(restored.problems);
    if (!Object.keys(restored.problems).length) return changed(0);
    lab.showStatus({ status: "asking", message: restored.message, fraction: 0 });
    lab.refresh();
  };
})();
