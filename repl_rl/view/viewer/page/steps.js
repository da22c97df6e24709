// One task over the steps of the run, or of several runs: all its rollouts, and two of them compared row by row.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill } = view;
  const LIMIT = 2000; // rows of each side: the table of the comparison grows with their product
  const narrow = window.matchMedia("(max-width: 760px)");

  const earlier = (a, b) => a.step - b.step || a.position - b.position;

  // The one to compare with if none was chosen: of another run, model or dialect, the last and there the one in its place;
  // of another step, the first of all or else the last.
  const partner = (rows, own) => {
    const others = rows.filter((row) => row.id !== own.id);
    const apart = others.filter((row) => row.split === own.split && view.compared.of(row) !== view.compared.of(own));
    const last = apart.filter((row) => row.step === apart.at(-1).step);
    return last.find((row) => row.position === own.position) || last[0] || others.find((row) => row.step < own.step) || others.findLast((row) => row.step > own.step) || others[0];
  };

  const choice = (row, own, other) => {
    const now = row.id === own.id ? "open" : row.id === other.id ? "compared" : "";
    const compare = now ? h("b", {}, now) : view.state.link({ with: row.id }, {}, "compare");
    return h("tr", { class: now ? "chosen" : "" },
      h("th", { scope: "row", class: "number" }, view.state.link({ open: row.id, with: own.id, line: "" }, { title: "open this one" }, `${row.step} #${row.position}`)),
      view.compared.several.length > 0 && h("td", { class: "of" }, view.compared.of(row)), h("td", { class: "wide" }, row.split), h("td", {}, view.verdict(row.status)), h("td", { class: "number" }, view.number(row.reward)), h("td", { class: "number wide" }, view.number(row.lines)), h("td", {}, compare));
  };

  const HEADS = [["step and #", "number"], ["of", "of"], ["split", "wide"], ["status", ""], ["reward", "number"], ["lines", "number wide"], ["compare", ""]];

  const list = (rows, own, other) => h("div", { class: "scroll short", tabindex: "0", role: "region", "aria-label": "Rollouts of this task" },
    h("table", { class: "choices" }, h("caption", { class: "hidden" }, "Rollouts of this task over the steps"),
      h("thead", {}, h("tr", {}, HEADS.filter(([name]) => name !== "of" || view.compared.several.length).map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, rows.map((row) => choice(row, own, other)))));

  const screen = async (source, id, signal) => {
    const rows = [];
    let total = 1;
    while (rows.length < Math.min(total, LIMIT)) {
      const part = await source.trajectory(id, rows.length, LIMIT - rows.length, signal);
      if (!part.screen.length) break;
      rows.push(...part.screen);
      total = part.screen_total;
    }
    return { rows, total };
  };

  const key = (row) => row.mark + row.pieces.map((piece) => piece.text).join("");
  const name = (row) => `${view.compared.of(row)} step ${row.step} #${row.position}`.trim();
  const cell = (sign, row) => [h("td", { class: row ? "sign" : "sign empty" }, row ? sign : ""), h("td", { class: row ? `side ${row.origin}` : "side none" }, row && [view.transcript.mark(row), " ", view.transcript.text(row)])];

  const beside = (pairs, left, right) => pairs.map(([i, j, same]) => h("tr", { class: same ? "same" : "changed" },
    cell(same ? "=" : "−", i === null ? null : left[i]), cell(same ? "=" : "+", j === null ? null : right[j])));

  const under = (steps, left, right) => steps.map(([sign, i, j]) => h("tr", { class: { "=": "same", "−": "changed removed", "+": "changed added" }[sign] }, cell(sign, i === null ? right[j] : left[i])));

  const compared = (first, second, a, b) => {
    const steps = view.diff.rows(a.rows.map(key), b.rows.map(key));
    const differing = steps.filter(([sign]) => sign !== "=").length;
    const cut = Math.max(a.total, b.total) > LIMIT ? ` Only the first ${LIMIT.toLocaleString("en-US")} rows of each were compared.` : "";
    const caption = (differing ? `${view.count(differing, "row differs", "rows differ")}: − only in ${name(first)}, + only in ${name(second)}, = in both.` : "Both transcripts are the same, row by row.") + cut;
    const heads = narrow.matches ? [h("th", { scope: "col", colspan: "2" }, `− ${name(first)}, + ${name(second)}`)]
      : [first, second].map((row) => h("th", { scope: "col", colspan: "2" }, name(row), " ", view.verdict(row.status)));
    const rows = narrow.matches ? under(steps, a.rows, b.rows) : beside(view.diff.paired(steps), a.rows, b.rows);
    return h("table", { class: `diff ${narrow.matches ? "under" : "beside"}` }, h("caption", {}, caption), h("colgroup", {}, heads.flatMap(() => [h("col", { class: "sign" }), h("col")])), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
  };

  view.steps = async (source, holder, id, signal) => {
    const { rows } = await source.task(id, signal);
    if (signal.aborted) return;
    rows.sort(earlier);
    const own = rows.find((row) => row.id === id);
    const other = own && (rows.find((row) => row.id === view.state.now.with && row.id !== id) || partner(rows, own));
    if (!other) return fill(holder, h("p", { class: "soft" }, "This task was rolled out once in this run: there is nothing to compare it with."));
    if (view.state.now.with !== other.id) return view.state.go({ with: other.id }, { replace: true });
    const body = h("div", { class: "soft" }, "Loading both.");
    const scrolled = holder.querySelector(".short") ? holder.querySelector(".short").scrollTop : null;
    fill(holder, h("p", { class: "soft" }, `${view.count(rows.length, "rollout", "rollouts")} of this task. Choose which one to compare with the open one.`), list(rows, own, other), body);
    const short = holder.querySelector(".short");
    if (scrolled !== null) short.scrollTop = scrolled;
    const [first, second] = [own, other].sort(earlier);
    const [a, b] = [await screen(source, first.id, signal), await screen(source, second.id, signal)];
    if (signal.aborted) return undefined;
    body.className = "scroll-x";
    return fill(body, compared(first, second, a, b));
  };

  view.steps.onWidth = (redraw) => narrow.addEventListener("change", redraw);
})();
