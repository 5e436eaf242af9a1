/* The script of the page, in five files: shared functions, the fields, the time, the answers of the server, and the
 * examples with the tour.
 *
 * The layout.meta.key of a figure is the key of the run that it shows. `lab.wanted` is the key of the current fields, or
 * null from the first change of a field until the server has read it. `refresh` greys every figure with another key.
 */
(function () {
  "use strict";

  const LONGEST = 60000; // the largest number of characters of an address that the server accepts
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  clientside.lab = {};
  const root = document.documentElement;
  const by = (id) => document.getElementById(id);
  const graph = (name) => document.querySelector(`#box-${name} .js-plotly-plot`);

  const lab = (window.lab = {
    clientside, root, by, graph,
    send: (id, data) => clientside.set_props(id, { data }),
    /* The name of this tab for the server. A reloaded or duplicated page has another name. */
    tab: Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join(""),
    fields: {}, query: "", wanted: null, problems: {}, status: "", time: 0, until: 1, spheres: [null, null],
    moments: [], names: [], trails: true,
    /* Whether figures may move before the user asks for it. */
    moves: () => !window.matchMedia("(prefers-reduced-motion: reduce)").matches,
  });

  /* ---- greyed figures ---- */

  const ENDED = (lab.ENDED = ["done", "failed", "stopped"]);

  const made = (name) => {
    if (name === "theory") return (by("theory").firstElementChild || { dataset: {} }).dataset.key;
    const plot = graph(name);
    return plot && plot.layout && (plot.layout.meta || {}).key;
  };

  /* The label of a field, which may be far below the figures. */
  function called(name) {
    const label = document.querySelector(`label[for=field-${name}]`);
    return label ? `${label.textContent}: ` : "";
  }

  function veil() {
    const wrong = Object.keys(lab.problems).find((name) => lab.problems[name]);
    if (wrong) return `not computed. ${called(wrong)}${lab.problems[wrong]}`;
    if (lab.wanted !== null && ENDED.includes(lab.status)) return lab.status;
    return lab.status === "asking" ? "not computed yet" : "computing …";
  }

  /* Grey every figure that does not belong to the current fields. */
  lab.refresh = function () {
    for (const name of ["sphere-1", "sphere-2", "curve", "theory"]) {
      const box = by(`box-${name}`), shown = name !== "sphere-2" || root.dataset.compare === "yes";
      if (!box) continue;
      if (shown && (lab.wanted === null || made(name) !== lab.wanted)) {
        box.dataset.stale = "yes";
        box.querySelector(".veil").dataset.words = veil();
      } else delete box.dataset.stale;
    }
    if (by("play")) by("play").disabled = by("box-sphere-1").dataset.stale === "yes" && !lab.player;
  };

  /* ---- themes, sizes and views ---- */

  function setTheme(theme, chosen) {
    lab.theme = theme;
    lab.themeChosen = lab.themeChosen || chosen;
    root.dataset.theme = theme;
    if (by("theme")) by("theme").textContent = theme === "dark" ? "Light" : "Dark";
  }

  lab.changeTheme = function (theme, chosen) {
    setTheme(theme, chosen);
    lab.redraw();
    lab.address();
  };

  const asked = new URLSearchParams(location.search).get("theme");
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const usual = () => (preferred.matches ? "dark" : "light");
  setTheme(["dark", "light"].includes(asked) ? asked : usual(), asked !== null);
  preferred.addEventListener("change", () => lab.themeChosen || lab.changeTheme(usual(), false));
  Object.assign(root.dataset, { view: "laboratory", source: "spectra", compare: "no", other: "no", audited: "no", measured: "no", head: "no" });

  /* On large screens the text of figures grows with the window, as the text of the page does (see lab.css). */
  const scale = () => (window.innerWidth < 1700 ? 1 : Math.min(2, Math.round(window.innerWidth / 142) / 10));
  lab.scale = scale();
  window.addEventListener("resize", () => {
    if (scale() === lab.scale) return;
    lab.scale = scale();
    clearTimeout(lab.resizing);
    lab.resizing = setTimeout(lab.redraw, 300);
  });

  lab.setView = function (view) {
    lab.fields.view = root.dataset.view = view;
    setTheme(lab.theme, false);
    for (const name of ["laboratory", "audit"])
      if (name === view) by(`view-${name}`).setAttribute("aria-current", "page");
      else by(`view-${name}`).removeAttribute("aria-current");
    window.dispatchEvent(new Event("resize"));
  };

  /* ---- the address bar, messages, downloads ---- */

  /* The address bar shows the state: the fields as the server read them, the time, and the theme if it was chosen. */
  lab.address = function () {
    const state = new URLSearchParams(lab.query);
    if (lab.time > 0) state.set("time", String(Number(lab.time.toFixed(6))));
    if (lab.themeChosen) state.set("theme", lab.theme);
    const text = state.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  };

  lab.tell = function (words) {
    by("told").textContent = words;
    clearTimeout(lab.telling);
    lab.telling = setTimeout(() => (by("told").textContent = ""), 4000);
  };

  lab.copyLink = async function () {
    // The link contains the fields as the server read them: wait for its answer.
    for (let i = 0; i < 20 && lab.answered !== lab.serial; i += 1) await new Promise((done) => setTimeout(done, 100));
    if (lab.answered !== lab.serial) return lab.tell("the server has not read the fields yet; try again");
    lab.address();
    if (location.href.length > LONGEST) return lab.tell("these matrices are too long for a link; download the script instead");
    try {
      await navigator.clipboard.writeText(location.href);
      lab.tell("link copied");
    } catch {
      window.prompt("Copy this link:", location.href);
    }
  };

  lab.download = async function (kind) {
    if (lab.wanted === null) return;
    lab.tell(`preparing the ${kind} …`);
    const body = new URLSearchParams({ tab: lab.tab, state: lab.query });
    const response = await fetch(`download/${kind}`, { method: "POST", body }).catch(() => null);
    if (!response || !response.ok) return lab.tell(response ? await response.text() : "the server does not answer");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = response.headers.get("X-Name");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    lab.tell(`${link.download} saved`);
  };

  /* ---- tell the server that this tab is open, or that it closes ---- */

  setInterval(async () => {
    const there = await fetch(`tab/${lab.tab}/touch`, { method: "POST" }).then((r) => r.ok, () => false);
    if (!there) lab.tell("the server does not answer; is it still running?");
  }, 5000);
  window.addEventListener("pagehide", () => navigator.sendBeacon(`tab/${lab.tab}/close`));
  window.addEventListener("pageshow", (event) => event.persisted && lab.changed(0));
})();
