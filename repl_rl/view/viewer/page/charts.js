// The run's curves, drawn by plotly in the page's colours. plotly is large and comes when the first curve is to be seen:
// until it is there the titles stand alone. A figure is drawn again only when its numbers or the colours changed.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const HEIGHTS = [240, 300]; // of a figure in pixels: in one row, among all
  const MANY = 6; // curves whose names would take more room above the figure than beside it
  const figures = new Map();
  let run = null;

  const themed = (layout, height, many) => {
    const css = getComputedStyle(document.documentElement);
    const of = (name) => css.getPropertyValue(name).trim();
    const axis = { gridcolor: of("--grid"), linecolor: of("--line"), zerolinecolor: of("--line"), fixedrange: true, automargin: true };
    const base = {
      font: { family: of("--sans"), size: 11.5, color: of("--soft") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 40, r: 10, t: 6, b: 34 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: { bgcolor: of("--card"), bordercolor: of("--line"), font: { color: of("--ink"), family: of("--sans") } },
      showlegend: true,
      ...(many ? { legend: { x: 1.01, y: 1.04, yanchor: "top", font: { size: 10.5 }, maxheight: height - 10 } } : {}),
    };
    const axes = {};
    const titled = (title) => ({ ...title, font: { size: 11.5 }, standoff: 6 });
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) axes[key] = { ...axis, ...layout[key], title: titled(layout[key].title) };
    return { ...base, yaxis: axis, ...layout, ...axes, height };
  };

  const columns = () => Math.max(1, Math.min(3, Math.floor((at("curves").clientWidth + 32) / 340)));

  const figure = (chart) => {
    const plot = h("div", { class: "plot" });
    const element = h("figure", {}, h("figcaption", {}, h("h3", { title: chart.caption }, chart.title), h("p", { class: "hidden" }, chart.caption)), plot);
    return { element, plot, drawn: "" };
  };

  const paint = (kept, chart) => {
    const height = HEIGHTS[view.state.now.curves === "all" ? 1 : 0];
    const text = JSON.stringify([chart.data, chart.layout, dark.matches, height]);
    if (!window.Plotly || kept.drawn === text || !kept.plot.clientWidth) return;
    const first = !kept.drawn;
    kept.drawn = text;
    kept.plot.style.height = `${height}px`;
    window.Plotly.react(kept.plot, structuredClone(chart.data), themed(structuredClone(chart.layout), height, chart.data.length > MANY), { displayModeBar: false, responsive: true });
    if (first) kept.plot.on("plotly_click", (event) => choose(chart, event.points[0].x));
  };

  // An exported file has it in itself.
  const bring = () => {
    const named = at("plotly");
    if (window.Plotly || !named || named.dataset.asked) return;
    named.dataset.asked = "yes";
    const script = document.createElement("script");
    script.src = named.getAttribute("src");
    script.addEventListener("load", draw);
    document.head.append(script);
  };

  const choose = (chart, x) => {
    const title = chart.layout.xaxis && chart.layout.xaxis.title ? chart.layout.xaxis.title.text : "";
    if (title === "step" && Number.isInteger(x)) view.state.go({ step: String(x), page: "1", follow: "" });
  };

  const shown = () => {
    if (view.state.now.curves === "none") return [];
    return view.state.now.curves === "all" ? run.charts : run.charts.slice(0, columns());
  };

  const buttons = () => {
    const mode = view.state.now.curves;
    const button = (to, text) => view.state.link({ curves: to }, { class: "quiet" }, text);
    const more = run.charts.length > columns();
    fill(at("curves-buttons"),
      mode !== "all" && more && button("all", `Show all ${run.charts.length}`), mode !== "some" && button("some", more ? "Show one row" : "Show"),
      mode !== "none" && button("none", "Hide"));
    fill(at("curves-hint"), mode === "none" ? "" : "A click on a step lists its rollouts.");
  };

  const families = () => {
    const rows = view.state.now.curves === "all" ? run.families : [];
    const heads = ["family", "problems", "before", "after", "change in points"];
    fill(at("families"), rows.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Held-out problems by family" },
      h("table", { class: "families" }, h("caption", {}, "Held-out problems solved, by family"),
        h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name), h("td", {}, view.number(row.count)),
          h("td", {}, view.percent(row.before)), h("td", {}, view.percent(row.after)), h("td", {}, view.signed(row.change))))))));
  };

  const draw = () => {
    if (!run) return;
    at("curves").hidden = run.charts.length === 0;
    buttons();
    families();
    const wanted = shown();
    for (const chart of wanted) if (!figures.has(chart.id)) figures.set(chart.id, figure(chart));
    const elements = wanted.map((chart) => figures.get(chart.id).element);
    const holder = at("charts");
    if (elements.length !== holder.children.length || elements.some((element, index) => holder.children[index] !== element)) holder.replaceChildren(...elements);
    if (holder.clientWidth && wanted.length) bring();
    for (const chart of wanted) paint(figures.get(chart.id), chart);
  };

  // A figure that was hidden while the window changed has the old width.
  const refit = () => {
    draw();
    if (!window.Plotly) return;
    for (const { plot, drawn } of figures.values()) {
      const stale = drawn && plot.clientWidth && plot.querySelector(".main-svg") && Math.abs(plot.querySelector(".main-svg").clientWidth - plot.clientWidth) > 1;
      if (stale) window.Plotly.Plots.resize(plot);
    }
  };

  let resized = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(draw, 200);
  });
  dark.addEventListener("change", draw);
  view.charts = { draw: (next) => { run = next; draw(); }, refit };
})();
