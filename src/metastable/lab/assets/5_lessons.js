/* Examples by name, and the tour: each puts texts into the fields and plays the run from its start. */
(function () {
  "use strict";

  const lab = window.lab, { by } = lab;
  lab.tourStep = -1; // the step of the tour; -1 outside the tour

  function set(fields) {
    for (const [name, text] of Object.entries(fields)) lab.put(name, text);
    lab.time = 0;
    lab.opening = lab.moves();
    lab.setView("laboratory");
    lab.changed(0);
  }

  lab.showExample = (option) => option.dataset.fields && set(JSON.parse(option.dataset.fields));

  /* Go to a step of the tour; a number that is no step leaves it. The settings stay. */
  lab.goTo = function (stop) {
    const steps = JSON.parse(by("tour").dataset.steps), entered = lab.tourStep < 0, step = steps[stop];
    lab.tourStep = step ? stop : -1;
    by("tour").hidden = !step;
    lab.root.dataset.tour = step ? "yes" : "no";
    window.dispatchEvent(new Event("resize"));
    if (!step) return by("tour-start").focus();
    by("tour-title").textContent = `${stop + 1} of ${steps.length}: ${step.title}`;
    by("tour-words").textContent = step.words;
    by("tour-back").disabled = stop === 0;
    by("tour-next").textContent = stop === steps.length - 1 ? "Finish" : "Next";
    if (entered) by("tour-next").focus();
    set(step.fields);
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && lab.tourStep >= 0) lab.goTo(-1);
  });
})();
