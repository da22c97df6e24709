// The pane of one trajectory: its head, and one of three views of it (transcript, group, steps).
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;
  const MODES = [["transcript", "Transcript", "t"], ["group", "Group", "g"], ["steps", "Over steps", "s"]];

  let source = null;
  let parts = null;
  let loaded = null; // { id, data, transcript }
  let request = new AbortController();
  let kept = { scroll: 0 };

  const build = (from) => {
    source = from;
    const button = (text, title, handler) => h("button", { type: "button", class: "quiet", title, on: { click: handler } }, text);
    parts = {
      title: h("h2", { id: "pane-title", tabindex: "-1" }, "Trajectory"), verdict: h("p", { class: "verdict" }), question: h("p", { class: "question" }),
      facts: h("p", { class: "soft facts-line" }), modes: h("nav", { class: "modes", "aria-label": "Views of the trajectory" }), body: h("div", { class: "body" }),
      previous: button("‹ Previous", "previous in the table (k)", () => move(-1)), next: button("Next ›", "next in the table (j)", () => move(1)),
      note: h("p", { class: "problem bad", role: "alert", hidden: true }),
    };
    fill(at("pane"), h("header", { class: "pane-head" }, h("h1", { id: "alone" }),
      h("div", { class: "line" }, parts.title, h("span", { class: "steps" }, parts.previous, parts.next, button("Close ×", "close (Escape)", close))),
      parts.verdict, parts.question, parts.facts), parts.modes, parts.note, parts.body);
    view.steps.onWidth(() => loaded && view.state.now.mode === "steps" && drawBody());
  };

  const open = (id) => view.state.go({ open: id, line: "", with: "" });
  const close = () => view.state.go({ open: "", line: "", with: "", mode: "transcript" });

  // The neighbour in the table's order, over the edge of a page too.
  const neighbour = async (by) => {
    const state = view.state.now;
    const rows = view.table.rows;
    const index = rows.findIndex((row) => row.id === state.open);
    const target = index < 0 ? 0 : index + by;
    if (rows[target]) return { open: rows[target].id };
    const page = Number(state.page) + by;
    if (page < 1 || page > view.table.pages) return null;
    const answer = await source.rows(view.state.query(state, page));
    const row = by > 0 ? answer.rows[0] : answer.rows[answer.rows.length - 1];
    return row ? { open: row.id, page: String(page) } : null;
  };

  const move = async (by) => {
    const from = view.state.now.open;
    const next = await neighbour(by).catch((error) => { say(`${error.message}.`); return null; });
    if (next && view.state.now.open === from) view.state.go({ ...next, line: "", with: "" });
  };

  const edges = () => {
    const state = view.state.now;
    const index = view.table.rows.findIndex((row) => row.id === state.open);
    const atEnd = (isLast, page) => String(isLast && Number(state.page) === page);
    parts.previous.setAttribute("aria-disabled", atEnd(index === 0, 1));
    parts.next.setAttribute("aria-disabled", atEnd(index >= 0 && index === view.table.rows.length - 1, view.table.pages));
  };

  const say = (text) => { fill(parts.note, text); parts.note.hidden = !text; };

  const times = (data) => {
    const named = [["engine", data.times.engine_s], ["kernel", data.times.kernel_s], ["queue", data.times.queue_s], ["own work", data.times.own_s]].filter(([, seconds]) => seconds > 0);
    const split = named.length > 1 ? ` (${named.map(([name, seconds]) => `${name} ${view.time(seconds)}`).join(", ")})` : "";
    return `${view.time(data.times.duration_s)}${split}`;
  };

  const drawHead = ({ data }) => {
    const { row } = data;
    fill(parts.title, row.task_id);
    fill(parts.verdict, view.verdict(row.status), h("span", {}, "reward ", h("b", {}, view.number(row.reward))), h("span", {}, "stopped by ", h("b", {}, view.words(row.stop_reason))),
      data.answer && h("span", {}, "answer ", h("code", {}, data.answer.join(", ") || "(nothing)")), data.reference !== null && h("span", {}, "reference ", h("code", {}, data.reference)),
      data.grade_reason && h("span", {}, `graded ${view.number(row.outcome)}: ${data.grade_reason}`), data.error && h("span", { class: "bad" }, "failure ", h("code", {}, data.error)));
    fill(parts.question, data.question);
    fill(parts.facts, [view.compared.of(row), `${row.split} step ${row.step}`, `#${row.position} in its file`, row.family && `family ${row.family}`, `weights ${row.version}`, view.count(row.lines, "line", "lines"), view.count(row.tokens, "token", "tokens"), times(data)].filter(Boolean).join(" · "),
      data.timeline && !source.embedded && [" · ", view.download(data.timeline, `timeline of the ${row.split === "eval" ? "evaluation" : "step"}`), " for ui.perfetto.dev"]);
  };

  const drawModes = () => fill(parts.modes, MODES.map(([mode, name, key]) => view.state.link({ mode, line: "", with: "" }, { title: `key ${key}`, ...(view.state.now.mode === mode ? { "aria-current": "page" } : {}) }, name)));

  const LEGEND = [["typed", "›", "typed by the model"], ["interpreter", "‹", "written by the interpreter"], ["prompt", "¶", "the prompt"]];
  const legend = () => h("p", { class: "legend" }, LEGEND.map(([origin, mark, text]) => h("span", { class: origin }, h("b", { class: "mark" }, mark), ` ${text}`)), h("span", {}, "A click on a line shows its tokens, and what its reward is made of."));

  const drawBody = () => {
    const { id, transcript } = loaded;
    const mode = view.state.now.mode;
    parts.body.dataset.mode = mode;
    if (mode === "transcript") {
      fill(parts.body, transcript.element, legend());
      return transcript.show(view.state.now.line, true);
    }
    if (!parts.body.querySelector(mode === "group" ? ".columns" : ".choices")) fill(parts.body, h("p", { class: "soft" }, "Loading."));
    const make = mode === "group" ? view.group : view.steps;
    return make(source, parts.body, id, request.signal).catch((error) => error.name === "AbortError" || fill(parts.body, h("p", { class: "problem bad" }, `${error.message}.`)));
  };

  const draw = () => { say(""); drawHead(loaded); drawModes(); drawBody(); };

  const fetched = async (id, signal) => {
    const data = await source.trajectory(id, 0, view.transcript.WINDOW, signal);
    const transcript = view.transcript.create(source, id, data, (line) => view.state.go({ line }, { replace: true }));
    return { id, data, transcript };
  };

  const failed = (id, error) => {
    loaded = null;
    fill(parts.title, id);
    for (const part of [parts.verdict, parts.question, parts.facts, parts.modes, parts.body]) fill(part);
    say(`${error.message}.`);
  };

  const load = async (id) => {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    at("pane").setAttribute("aria-busy", "true");
    if (!loaded) fill(parts.body, h("p", { class: "soft" }, "Loading the trajectory."));
    try {
      const next = await fetched(id, signal);
      if (signal.aborted) return;
      loaded = next;
      at("pane").scrollTop = 0;
      draw();
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      failed(id, error);
    }
    at("pane").setAttribute("aria-busy", "false");
  };

  const appear = (first) => {
    kept = { scroll: window.scrollY };
    document.body.classList.add("opened");
    at("pane").hidden = false;
    window.scrollTo(0, 0);
    if (!first) parts.title.focus({ preventScroll: true });
  };

  const vanish = (id) => {
    request.abort();
    loaded = null;
    for (const part of Object.values(parts)) if (part !== parts.previous && part !== parts.next) part.replaceChildren();
    at("pane").hidden = true;
    document.body.classList.remove("opened");
    view.charts.refit();
    window.scrollTo(0, kept.scroll);
    view.table.focus(id) || at("table-title").focus({ preventScroll: true });
  };

  // Brings the pane to what the address says; `before` is what it said.
  const show = (state, before, first = false) => {
    if (!state.open) return before.open ? vanish(before.open) : undefined;
    if (first || !before.open) appear(first);
    if (first || state.open !== before.open) load(state.open);
    else if (loaded && view.state.changed(state, before, ["mode", "with"])) { drawModes(); drawBody(); }
    else if (loaded && state.mode === "transcript") loaded.transcript.show(state.line, false);
    view.table.reveal(state.open);
    edges();
    return undefined;
  };

  // New files may hold the trajectory that was missing, or more of its task.
  const refresh = () => {
    const { open: id, mode } = view.state.now;
    if (!id) return;
    edges();
    if (!loaded && at("pane").getAttribute("aria-busy") !== "true") load(id);
    else if (loaded && mode === "steps") drawBody();
  };

  view.pane = { build, show, open, close, move, refresh, edges };
})();
