// The rollouts of one task in one step, side by side: the same question, other lines, and what each was worth.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill } = view;
  const ROWS = 160;

  const line = (row, lines) => {
    const begun = row.lines.map((index) => lines[index]).filter(Boolean);
    const advantages = begun.map((one) => h("span", { class: `value ${view.transcript.tone(one.advantage)}`, title: `line ${one.index}: ${view.words(one.kind)}, reward ${view.number(one.reward)}` },
      h("span", { class: "hidden" }, "advantage "), view.signed(one.advantage)));
    const fault = begun.some((one) => one.fault);
    return h("div", { class: `row ${row.origin}${begun.length ? " acted" : ""}${fault ? " failed" : ""}` }, view.transcript.mark(row), view.transcript.text(row), advantages.length > 0 && h("div", {}, advantages));
  };

  const screen = (data) => {
    const typed = data.screen.filter((row) => row.origin !== "prompt");
    const left = data.screen_total - data.screen.length;
    return [h("div", { class: "screen" }, typed.map((row) => line(row, data.lines))), left > 0 && h("p", { class: "soft" }, `${left.toLocaleString("en-US")} more rows`)];
  };

  const column = (row, chosen) => {
    const body = h("div", { class: "soft" }, "Loading.");
    const link = view.state.link({ open: row.id, mode: "transcript", line: "", with: "" }, chosen ? { "aria-current": "true" } : {}, `#${row.position}`);
    const element = h("article", { class: `column${chosen ? " chosen" : ""}` },
      h("h3", {}, link, " ", view.verdict(row.status)), h("p", { class: "soft" }, `reward ${view.number(row.reward)} · ${view.count(row.lines, "line", "lines")} · ${view.words(row.stop_reason)}`), body);
    return { element, body };
  };

  const load = async (source, rows, bodies, signal) => {
    const members = [];
    for (const [index, row] of rows.entries()) {
      if (signal.aborted) return null;
      try {
        const data = await source.trajectory(row.id, 0, ROWS, signal);
        fill(bodies[index], screen(data));
        bodies[index].classList.remove("soft");
        members.push({ row, branch: data.branch, lines: Object.values(data.lines).sort((one, other) => one.index - other.index) });
      } catch (error) {
        if (error.name === "AbortError") return null;
        fill(bodies[index], `It can't be shown: ${error.message}.`);
      }
    }
    return members.length === rows.length ? members : null;
  };

  view.group = async (source, holder, id, signal) => {
    const { rows } = await source.group(id, signal);
    if (signal.aborted) return;
    const columns = rows.map((row) => column(row, row.id === id));
    const solved = rows.filter((row) => row.status === "solved").length;
    const scroller = h("div", { class: "columns", tabindex: "0", role: "region", "aria-label": "Rollouts of this task in this step" }, columns.map(({ element }) => element));
    fill(holder, h("p", { class: "soft" }, rows.length > 1 ? `${view.count(rows.length, "rollout", "rollouts")} of this task in step ${rows[0].step}, ${solved} solved. The number behind a line is its advantage.` : "This task was rolled out once in this step."), scroller);
    const chosen = scroller.querySelector(".chosen");
    if (chosen) scroller.scrollLeft = chosen.offsetLeft - scroller.offsetLeft - 40;
    const members = await load(source, rows, columns.map(({ body }) => body), signal);
    const tree = members && !signal.aborted && view.tree(members, id);
    if (tree) scroller.before(tree);
  };
})();
