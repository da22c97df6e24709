(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 760px)");

  const themed = (layout) => {
    const css = getComputedStyle(document.documentElement);
    const of = (name) => css.getPropertyValue(name).trim();
    const axis = { gridcolor: of("--grid"), linecolor: of("--line"), zerolinecolor: of("--line"), fixedrange: true, automargin: true };
    const base = {
      font: { family: of("--sans"), size: 13, color: of("--soft") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 46, r: 12, t: 8, b: 40 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: narrow.matches ? 12 : 13 } },
      hoverlabel: { bgcolor: of("--card"), bordercolor: of("--line"), font: { color: of("--ink"), family: of("--sans") } },
      showlegend: true,
    };
    const axes = {};
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) axes[key] = { ...axis, ...layout[key] };
    return { ...base, yaxis: axis, ...layout, ...axes };
  };

  const draw = () => {
    for (const [id, figure] of Object.entries(figures)) {
      Plotly.react(id, structuredClone(figure.data), themed(structuredClone(figure.layout)), { displayModeBar: false, responsive: true });
    }
  };
  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
