// Draws the charts with Vega-Lite, in the colours of the page, anew when these change.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("chart-specs").textContent);
  const places = [...document.querySelectorAll(".chart")];

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

  const draw = async () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    const options = { actions: false, ast: true, renderer: "svg", config: config(), tooltip: { theme: dark ? "dark" : "light" } };
    await Promise.all(places.map((place, at) => vegaEmbed(place, specs[at], options)));
    document.documentElement.dataset.charts = "drawn";
  };
  document.addEventListener("themechange", draw);
  draw();
})();
