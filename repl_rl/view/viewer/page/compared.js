// Several runs over each other, or an evaluation of several models: what tells them apart, and how they did on the same
// held-out problems. The first is what the others are compared with.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;
  const NAMES = ["run", "model", "dialect"];
  let several = [];

  const points = (value) => (Math.abs(value) < 0.0005 ? "0.0" : `${value > 0 ? "+" : "−"}${(100 * Math.abs(value)).toFixed(1)}`);
  const share = ({ value, low, high }) => [h("b", {}, view.percent(value)), h("span", { class: "soft" }, ` ${view.percent(low)} to ${view.percent(high)}`)];
  const gain = ({ value, low, high, problems }) => [h("b", { class: low > 0 ? "good" : high < 0 ? "bad" : "" }, points(value)),
    h("span", { class: "soft" }, ` ${points(low)} to ${points(high)}`), h("span", { class: "soft wide" }, ` on ${problems}`)];

  const table = (rows, names, hasFamilies) => {
    const heads = [...(hasFamilies ? ["family"] : []), ...names].map((name) => [name]).concat([["step", "number wide"], ["problems", "number wide"],
      ["solved, 95% interval"], ["points over the first, 95% interval"]]);
    const cells = (row) => [...(hasFamilies ? [row.family] : []), ...names.map((name) => row[name])];
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": hasFamilies ? "Held-out problems by family" : "Held-out problems" },
      h("table", { class: "compared" }, h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { scope: "col", class: kind || "" }, name)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, cells(row).map((text) => h("th", { scope: "row" }, text)), h("td", { class: "number wide" }, String(row.step)),
          h("td", { class: "number wide" }, row.rate ? String(row.rate.problems) : "0"), h("td", {}, row.rate && share(row.rate)), h("td", {}, row.change ? gain(row.change) : "–"))))));
  };

  const draw = (run) => {
    several = NAMES.filter((name) => run.choices[`${name}s`].length > 1);
    const names = several.length ? several : ["run"];
    const [all, families] = [run.compared.filter((row) => row.family === "all"), run.compared.filter((row) => row.family !== "all")];
    const open = Boolean(at("compared").querySelector("details[open]"));
    fill(at("compared"), all.length > 0 && [h("h2", {}, "Held-out problems"), table(all, names, false),
      families.length > all.length && h("details", { class: "more", open }, h("summary", {}, "By family"), table(families, names, true))].filter(Boolean));
  };

  view.compared = {
    NAMES, draw,
    get several() { return several; },
    // What tells a trajectory from those of the other runs, models and dialects; "" where there is only one.
    of: (row) => several.map((name) => row[name]).join(", "),
  };
})();
