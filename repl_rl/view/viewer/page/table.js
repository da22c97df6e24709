// The table of trajectories, one page of it at a time. Rows are kept by their ids: a live run fills the table again and
// again, and neither the scroll position nor the focus nor the marked row may move under the reader.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;

  const tally = (names) => {
    const counts = new Map();
    for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
    return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", ");
  };

  const task = (row) => [view.state.link({ open: row.id, line: "", with: "" }, { class: "open" }, row.task_id),
    view.compared.several.length > 0 && h("span", { class: "among" }, view.compared.of(row)), row.errors.length > 0 && h("span", { class: "phone" }, tally(row.errors))];

  // Name, how it is sorted, first order, class, what a cell holds.
  const COLUMNS = [
    ["step", "step", "desc", "number", (row) => [String(row.step), row.split !== "train" && h("span", { class: "split" }, ` ${row.split}`)]],
    ["task", "task_id", "asc", "task", task],
    ...view.compared.NAMES.map((name) => [name, name, "asc", `wide of-${name}`, (row) => row[name]]),
    ["status", "status", "asc", "", (row) => view.verdict(row.status)],
    ["reward", "reward", "desc", "number", (row) => view.number(row.reward)],
    ["lines", "lines", "desc", "number wide", (row) => view.number(row.lines)],
    ["tokens", "tokens", "desc", "number wide", (row) => view.number(row.tokens)],
    ["errors", "errors", "desc", "errors", (row) => tally(row.errors)],
    ["time", "duration_s", "desc", "number wide", (row) => view.time(row.duration_s)],
    ["stopped by", null, "", "wide", (row) => view.words(row.stop_reason)],
    ["#", "position", "asc", "number wide", (row) => String(row.position)],
  ];

  let body = null;
  let shown = { rows: [], total: 0 };

  const sortBy = (key, first) => {
    const { sort, order } = view.state.now;
    const flipped = order === "asc" ? "desc" : "asc";
    view.state.go({ sort: key, order: sort === key ? flipped : first, page: "1" });
  };

  const head = ([name, key, first, kind]) => {
    const title = name === "#" ? { title: "position in the file" } : {};
    if (!key) return h("th", { scope: "col", class: kind }, name);
    const button = h("button", { type: "button", ...title, on: { click: () => sortBy(key, first) } }, name, h("span", { class: "arrow", "aria-hidden": "true" }));
    return h("th", { scope: "col", class: kind, data: { sort: key } }, button);
  };

  const build = () => {
    body = h("tbody", { on: { click: clicked } });
    fill(at("table"), h("table", { class: "rows" }, h("caption", { class: "hidden" }, "Trajectories of the run, sorted by the marked column"),
      h("thead", {}, h("tr", {}, COLUMNS.map(head))), body));
  };

  // A click beside the link opens too; a selection of text does not.
  const clicked = (event) => {
    const row = event.target.closest("tr");
    if (!row || event.target.closest("a") || String(window.getSelection())) return;
    view.pane.open(row.view.id);
  };

  const refill = (element, row) => {
    const text = JSON.stringify(row);
    if (element.view && element.view.text === text) return;
    element.view = { id: row.id, text };
    fill(element, COLUMNS.map(([, , , kind, cell]) => h("td", { class: kind }, cell(row))));
  };

  const relink = () => {
    const { open, sort, order } = view.state.now;
    for (const element of body.children) {
      const link = element.querySelector("a.open");
      element.classList.toggle("chosen", element.view.id === open);
      if (element.view.id === open) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    for (const th of at("table").querySelectorAll("th[data-sort]")) {
      const sorted = th.dataset.sort === sort;
      if (sorted) th.setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
      fill(th.querySelector(".arrow"), sorted ? (order === "asc" ? " ▲" : " ▼") : "");
    }
  };

  const place = (rows) => {
    const kept = new Map([...body.children].map((element) => [element.view.id, element]));
    rows.forEach((row, index) => {
      const element = kept.get(row.id) || h("tr", {});
      refill(element, row);
      if (body.children[index] !== element) body.insertBefore(element, body.children[index] || null);
    });
    while (body.children.length > rows.length) body.lastElementChild.remove();
  };

  // Runs `change` and puts the focus back: on the same row, or on the one that stands in its place.
  const keepingFocus = (change) => {
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    const index = focused ? [...body.children].indexOf(focused) : -1;
    change();
    if (!focused || document.activeElement !== document.body) return;
    const heir = focused.isConnected ? focused : body.children[Math.min(index, body.children.length - 1)];
    if (heir) heir.querySelector("a.open").focus({ preventScroll: true });
  };

  const counted = ({ total, rows }) => {
    if (!total) return "";
    const first = (Number(view.state.now.page) - 1) * view.state.PER_PAGE;
    return rows.length ? `${total.toLocaleString("en-US")}, shown: ${first + 1} to ${first + rows.length}` : `${total.toLocaleString("en-US")}, none on page ${view.state.now.page}`;
  };

  const pager = ({ total }) => {
    const page = Number(view.state.now.page);
    const last = Math.max(1, Math.ceil(total / view.state.PER_PAGE));
    const to = (target, text) => target >= 1 && target <= last
      ? view.state.link({ page: String(target) }, { class: "quiet" }, text) : h("span", { class: "quiet off" }, text);
    const elements = last > 1 || page > 1 ? [to(1, "First"), to(page - 1, "Previous"), h("span", {}, `page ${page} of ${last}`), to(page + 1, "Next"), to(last, "Last")] : [];
    fill(at("pager"), elements);
  };

  const empty = (answer, run) => {
    if (answer.rows.length) return "";
    if (answer.total) return "This page is beyond the end of the table.";
    if (view.state.FILTERS.some((name) => view.state.now[name] !== "")) return "No trajectory matches these filters.";
    return run.index.complete ? "No trajectories are stored in this run yet." : "Trajectories are being read.";
  };

  const draw = (answer, run) => {
    shown = answer;
    for (const name of view.compared.NAMES) at("table").classList.toggle(`one-${name}`, !view.compared.several.includes(name));
    keepingFocus(() => place(answer.rows));
    relink();
    const text = view.visible(counted(answer));
    if (at("count").textContent !== text) fill(at("count"), text);
    pager(answer);
    problem(empty(answer, run), false);
    at("table").hidden = answer.rows.length === 0;
  };

  const problem = (text, bad = true) => {
    const element = at("table-problem");
    if (element.textContent !== view.visible(text)) fill(element, text);
    element.hidden = !text;
    element.classList.toggle("bad", bad);
  };

  const reveal = (id) => {
    const element = [...body.children].find((other) => other.view.id === id);
    if (element) element.scrollIntoView({ block: "nearest" });
    return element;
  };

  view.table = {
    build, draw, relink, problem, reveal,
    busy: (is) => at("table").setAttribute("aria-busy", String(is)),
    get rows() { return shown.rows; },
    get pages() { return Math.max(1, Math.ceil(shown.total / view.state.PER_PAGE)); },
    focus: (id) => { const element = reveal(id); if (element) element.querySelector("a.open").focus({ preventScroll: true }); return Boolean(element); },
  };
})();
