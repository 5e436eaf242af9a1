(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("audit-data").textContent);
  const at = id => document.getElementById(id);
  // Names and sentences become text nodes only, never markup.
  const made = (tag, text, name) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const row = cells => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  };
  const remarked = (cell, remarks) => {
    cell.append(...remarks.filter(Boolean).map(remark => made("span", remark, "remark")));
    return cell;
  };
  const labelled = (cell, label) => {
    cell.dataset.label = label;
    return cell;
  };

  // Plotly keeps and changes what it is given, so it gets a copy.
  const draw = (id, figure) => Plotly.react(id, structuredClone(figure.data), structuredClone(figure.layout), data.config);

  const showMap = name => {
    const map = data.maps[name];
    at("heat-map-caption").textContent = map.caption;
    return draw("heat-map", map);
  };

  const showSpectrum = panels => {
    const figure = structuredClone(data.spectrum);
    panels.forEach((panel, i) => {
      ["kernel", "rest", "first"].forEach((part, j) => {
        [figure.data[3 * i + j].x, figure.data[3 * i + j].y] = panel[part];
      });
      figure.layout.annotations[i].text = panel.heading;
      figure.layout[i ? "xaxis2" : "xaxis"].range = panel.x;
      figure.layout[i ? "yaxis2" : "yaxis"].range = panel.y;
    });
    draw("spectrum", figure);
    at("spectrum-caption").textContent = figure.caption;
  };

  const heads = new Map(data.heads.map(head => [head.place, head]));
  const show = head => {
    at("head-title").textContent = `Layer ${head.layer}, head ${head.head}`;
    at("layer").value = head.layer;
    at("of-layer").value = head.head;
    at("head-sentence").textContent = head.sentence;
    at("head-unusual").replaceChildren(...head.unusual.map(sentence => made("li", sentence)));
    at("head-numbers").tBodies[0].replaceChildren(...data.columns.map((column, i) => {
      const name = remarked(made("th", column.name), [column.meaning]);
      name.scope = "row";
      const median = labelled(made("td", column.median), "median of this model: ");
      return row([
        name,
        remarked(labelled(made("td", head.values[i][0], "number"), "this head: "), head.values[i].slice(1)),
        remarked(median, column.beside),
        labelled(made("td", column.usual), "usual: "),
      ]);
    }));
    const marks = {holds: "✓", doubtful: "?", fails: "✗"};
    at("head-checks").tBodies[0].replaceChildren(...data.checks.map((check, i) => {
      const name = remarked(made("th", check.name), [check.meaning]);
      name.scope = "row";
      return row([name, made("td", `${marks[head.checks[i]]} ${head.checks[i]}`, `status ${head.checks[i]}`)]);
    }));
    showSpectrum(head.spectrum);
  };

  const open = (layer, head) => {
    const place = `layer-${layer}-head-${head}`;
    if (location.hash === `#${place}`) follow();
    else location.hash = place;
  };
  const follow = () => {
    const head = heads.get(location.hash.slice(1));
    if (!head) return;
    show(head);
    at("head").scrollIntoView();
  };

  at("column").addEventListener("change", event => showMap(event.target.value));
  for (const id of ["layer", "of-layer"]) {
    at(id).addEventListener("change", () => open(at("layer").value, at("of-layer").value));
  }
  window.addEventListener("hashchange", follow);
  showMap(data.first).then(plot => plot.on("plotly_click", event => {
    const cell = event.points[0];
    // The second panel is the model with random weights, whose heads have no section.
    if (cell.data.type === "heatmap" && cell.data.name === "this model") open(cell.y, cell.x);
  }));
  show(data.heads.find(head => head.unusual.length) || data.heads[0]);
  follow();
})();
