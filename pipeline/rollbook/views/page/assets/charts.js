// Draws the charts with Vega-Lite, in the colours of the page, anew when these change.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("chart-specs").textContent);
  const places = [...document.querySelectorAll(".chart")];
  const choices = document.getElementById("chains"); // of several chains, which are drawn

  const chosen = (spec) => {
    if (!choices) return spec.data.values;
    const names = new Set(Array.from(choices.querySelectorAll(":checked"), (box) => box.value));
    return spec.data.values.filter((point) => names.has(point.chain));
  };

  // The colour that a variable of the page stands for now: light-dark() is resolved only where it is used.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const color = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };

  const config = () => {
    const [ink, soft, line] = ["ink", "soft", "line"].map(color);
    const text = { labelColor: soft, titleColor: soft, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: null,
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: { ...text, domainColor: line, tickColor: line, gridColor: line, gridOpacity: 0.6, titlePadding: 8, labelOverlap: true },
      legend: { ...text, labelColor: ink, labelFontSize: 13, symbolOpacity: 1 },
      range: { category: ["c1", "c2", "c3", "c4", "c5", "c6"].map(color) },
      mark: { color: color("c1") },
    };
  };

  let views = [];
  const draw = async () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    const options = { actions: false, ast: true, renderer: "svg", config: config(), tooltip: { theme: dark ? "dark" : "light" } };
    const drawn = specs.map((spec, at) => vegaEmbed(places[at], { ...spec, data: { ...spec.data, values: chosen(spec) } }, options));
    views = (await Promise.all(drawn)).map((each) => each.view);
    document.documentElement.dataset.charts = "drawn";
  };
  document.addEventListener("themechange", draw);
  if (choices) choices.addEventListener("change", () => views.forEach((view, at) => view.data(specs[at].data.name, chosen(specs[at])).runAsync()));
  draw();
})();
